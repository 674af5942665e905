"""Products: matmul with prologues and epilogues ("contraction").

On CPUs there are three lowerings. `lowering.py` has blocks of register tiles, whose B is packed block by block, read in
place, or packed once and for all (`panels.py`). With `pack_b="shared"` all workers pack it together: a launch of its
own (`families/packing/lowering.py`, `decompositions/shared_packing.py`), and then the product over its panels; so bytes
that are no constants are multiplied. `dots.py` (`order="dots"`) has dot products of few rows by [N, K] weights, read in
one pass; on a matrix unit such weights are the first operand of the transposed product instead (`matrix/turned.py`).
The third is convolution's. With `sums="registers"` a register tile walks all of K, and adds up blocks of it as it goes.

A product by few columns is made as its transpose where the matrix beside them is read along K or row by row
(`decompositions/few_columns.py`): its arrays are laid out with m and n exchanged, so that prologues, epilogues and the
schedule are those of a product of few rows.

A product normalizes the rows of its first operand on the way (`norms.py`). `ContractionSpec.sibling` is a second
product of the same A: panels are then half as wide, so that a register tile holds the sums of both side by side, and
the loop over K is that of one product. `decompositions/apart.py` says where both run as kernels of their own: on GPUs,
with few columns, with operands that are no packed constants, and where the cost model likes that better.

The dtypes in which operands are multiplied on GPUs, `gpu/operands.py` says: as they are stored, as far as that is
exact.
"""

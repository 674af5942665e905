"""What Tessera computes of a graph.

A `Partition` (`partition.py`) knows a `BoundPartition` (`binding.py`) for each layout of its inputs: the joined
structure over placeholders, which of the inputs' leaves each of its own is, and how results become torch tensors. A
result that lies in other than its named order in torch (`layouts.py`) is asked for transposed, so that the kernel
writes it so; only what still differs is copied. Sizes that a graph has as symbols are evaluated per call from the
inputs (`graphs/extents.py`). `leaves.py` keeps one constant for each parameter of inference graphs. `outputs.py` says
what results are in torch, for artefacts too.
"""

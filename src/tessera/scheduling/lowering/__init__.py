"""Writing Tile IR: what the lowerings of all families share.

Kernels of CPUs that multiply, pack or walk windows are loops around register tiles, and both are written once.
`loop_nest.py` has a worker's share, blocks, tiles with their tails (`tails.py`), and how operands are read and results
stored from inside; `ranges.py` has the sums that are formed in parts. Products, convolutions and attention say where
their tiles are and what reads their operands. The passes of maps and reductions over their rows are
`families/rows/lowering.py`.
"""

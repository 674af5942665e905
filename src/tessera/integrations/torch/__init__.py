"""The `torch.compile` backend: graphs of ATen operators, cut into partitions that Tessera's plans compute.

`backend.py` is what torch calls. AOTAutograd makes each of Dynamo's graphs functional, adds gradients, and hands over
ATen graphs (`graphs/decompositions.py`). `mapping/` has a row for each overload: a function that writes the call with
`op.`, or raises `Unsupported`. `graphs/examination.py` tries each node's row on placeholders and compares shape and
dtype with torch's. `graphs/levels.py` numbers stages, in each of which torch's nodes run first, then one partition,
then views of its results, which torch makes; random numbers and writes keep their order. `graphs/graph.py` runs the
stages.
"""

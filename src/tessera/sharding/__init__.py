"""Tensors over many devices.

A tensor on a mesh is a `ShardedLeaf`: its structure is a buffer with a `Layout` (`lazy/layouts.py`: per dimension the
axes of the mesh that split it, and the axes along which a reduction is pending), its owner `Shards`, which allocates
what this process holds when it is read. Its device is "mesh(tp=2, dp=4)", so that tensors of other devices do not meet
it, and `compiler/pipeline.py` plans it apart: nothing else of the compiler knows of meshes.

`execution.py` is the plan. What lies between two stops is evaluated as any expression, by the kernels of the local
shapes. Products beside exchanges are computed in pieces; in how many, `chunk_choice.py` finds out where nobody says it,
by `planner/local_programs.py`, which predicts what a schedule takes and what binds it, or by trying.

| folder | what is in it |
| --- | --- |
| `tensors/` | meshes, layouts, shards |
| `partitioning/` | from an expression to the program of a device |
| `regions/` | functions of shards |
| `exchange/` | collectives, over emulated meshes and over jobs |
| `job/`, `transport/` | processes, and how bytes go between them |
| `checkpoints/` | shards in files |
| `pipeline/`, `planner/`, `published/` | schedules and plans as data, and the measurements they are held against |
"""

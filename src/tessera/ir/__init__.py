"""The dialect `tessera`: its parser, verifiers and passes, and a folder for each level.

* Graph IR (`graph/`): operators on `tensor<?x?xf32>`, a function per program. A dimension of size 1 that broadcasts is
  a static `1` in the type. Each result carries `dims = ["s0", "s1"]`, the names of its extents, so that a bound plan
  can evaluate all of them. All calls of libraries are `tessera.graph.library {callee}`.

* Schedule IR (`schedule/`): kernels. Fusion makes them over tensors, with a region that holds the operations of one
  kernel. Bound to layouts and a schedule, a kernel is one over buffers: its region (`schedule/region.py`) is arithmetic
  on elements, `arguments` has the axes that each buffer walks, `knobs` the schedule. That is all that lowerings are
  given.

* Tile IR (`tile/`): one kernel with explicit loops and memory. docs/ir.md says what its operations mean; `interpreter/`
  runs it, and is the oracle of every backend.

`anchors/` has the index maps of operators, from which their shapes, verifiers and FLOPs follow.
"""

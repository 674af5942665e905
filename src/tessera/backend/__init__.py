"""Backends: Tile IR and a target in, loadable kernels out, and nothing else in (`contract.py`).

A backend is a folder here that exports one constant, `BACKEND`; `registry.py` finds it by the kind of device that runs
its kernels. `compiler`, `tuning` and `integrations` import those two modules of this package and no others. `runtime`,
`profiling` and `sharding` have native code of their own made here, which is text for LLVM and no kernel. `backend`
imports only `ir`, `target` and what is below them (tests/test_layers.py).

Alignment stands in the IR: a launch site on a GPU compiles its kernel with the `divisors` that hold in this call
(`compiler/device/sites.py`), a schedule may state others (`vector_bytes`). Triton's code relies on them. Vectors of
CPUs may start anywhere, so LLVM's does not.

A kernel marked `timed` is a build of its own, which nothing but `graph.profile` runs: it reads the clock around each
turn of a loop marked `macro_tile` (of the worker's share, where none is), and writes into the memory of
`tile_times.py`.
"""

"""Bound plans.

Of the CPU: a table of steps `(kernel address, descriptors, workers)`, a template of the table of addresses, and the
list of slots to fill. The native driver, one function that LLVM makes once, runs all steps in one call. It starts
workers through `GOMP_parallel` where a step has more than one, and writes a record of each step to the ring buffer
while a recorder is set (`profiling/ring/recorder.py`).

Of a GPU: a `DevicePlan` (`gpu_plan.py`) holds for each launch the loaded kernel, the grid and a template of arguments
whose holes are filled from the same kind of table. Results and the arena come from the driver: torch's caching
allocator, in the order of torch's current stream. `gpu_graphs.py` decides when launches become one graph
(`TESSERA_CUDA_GRAPHS`), `gpu_library_plan.py` runs stretches of launches and the calls of libraries between them. A
leaf that does not start on an address that 16 divides has a plan of its own, made at its first call. Extents have 32
bits, strides and offsets 64: axes are merged up to 2^31 - 1 elements, and a longer one is refused by name.

`stored_plan.py` makes JSON and blobs of a plan, and a plan of these; kernels, the driver among them, are linked by
`backend/elf.py`. So a process that loads artefacts (`artefact_file.py`, `stored_tensors.py`) has neither LLVM nor xDSL.
"""

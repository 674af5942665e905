"""The Triton backend for GPUs: Tile IR in, Triton source and machine code out.

`printing/` writes the source, `compilation/` has it compiled, in processes of their own (`offline.py`), for GPUs that
need not be there: registers, spills, shared memory, instruction counts and machine code are kept beside the source.
`compile` gives `GpuKernelObject`s (`backend/gpu_objects.py`): machine code, entry, parameters in launch order, threads,
shared and scratch memory. A tensor descriptor takes one address, its extents and its strides from a launch's arguments
(`GpuParameter.words`), any other parameter one number. `target/occupancy.py` turns them into occupancy.

There are neither barriers nor asynchronous copies in Tile IR: Triton places its own. What Triton drops of the hints it
was given is an error (`compilation/faithfulness.py`). A timed kernel takes one parameter more, the memory for a record
of each step of its grid (`printing/tile_clock.py`). Without OFP8's formats, and for Triton's interpreter, 8-bit floats
are taken out of Tile IR first (`printing/float8.py` chooses); with them only roundings to `f8E5M2` are replaced, which
instructions saturate. `ceilings.py` measures what the GPU can do, which replaces published figures
(`target/stored_ceilings.py` keeps it).
"""

from typing import Final

from tessera.backend.contract import GpuBackend
from tessera.backend.triton.backend import TritonBackend

__all__ = ["BACKEND", "TritonBackend"]

BACKEND: Final[GpuBackend] = TritonBackend()

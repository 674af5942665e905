"""Triton kernels written by hand, compiled for GPUs that need not be there: what printed kernels do not do."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tessera.backend.contract import GpuKernelObject, GpuParameter, LaunchFacts
from tessera.backend.triton.compilation.static import PROGRAM
from tessera.target import Target

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def host_descriptor(a_desc, out_ptr, n: tl.int64):
    rows = tl.program_id(0) * 64
    tile = a_desc.load([rows, 0])
    tl.store(out_ptr + (rows + tl.arange(0, 64))[:, None] * n + tl.arange(0, 64)[None, :], tile)


@triton.jit
def device_descriptor(a_ptr, out_ptr, m, n: tl.int64):
    rows = tl.program_id(0) * 64
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[m, n], strides=[n, 1], block_shape=[64, 64])
    tile = a_desc.load([rows, 0])
    tl.store(out_ptr + (rows + tl.arange(0, 64))[:, None] * n + tl.arange(0, 64)[None, :], tile)


@triton.jit
def out_of_bounds(out_ptr, at: tl.int64):
    tl.store(out_ptr + at + tl.arange(0, 32), 1.0)


@triton.jit
def add_one(x_ptr, n):
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)
"""

PARAMETERS: dict[str, tuple[GpuParameter, ...]] = {
    "host_descriptor": (
        GpuParameter("a_desc", "tensordesc<bf16[64, 64]>", 0),
        GpuParameter("out_ptr", "*bf16", 1, divisor=16),
        GpuParameter("n", "i64", 1, "stride"),
    ),
    "device_descriptor": (
        GpuParameter("a_ptr", "*bf16", 0, divisor=16),
        GpuParameter("out_ptr", "*bf16", 1, divisor=16),
        GpuParameter("m", "i32", 0, "size"),
        GpuParameter("n", "i64", 0, "stride", divisor=16),
    ),
    "out_of_bounds": (GpuParameter("out_ptr", "*fp32", 0), GpuParameter("at", "i64", 1)),
    "add_one": (GpuParameter("x_ptr", "*fp32", 0, divisor=16), GpuParameter("n", "i32", 0, "size")),
}


@functools.cache
def compile_source(name: str, target: Target) -> GpuKernelObject:
    """A kernel of `SOURCE` for a GPU, by the same process that compiles printed ones."""
    assert target.gpu is not None
    parameters = PARAMETERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels.py")
        path.write_text(SOURCE)
        request = {
            "function": name,
            "signature": {parameter.name: parameter.kind for parameter in parameters},
            "divisors": {parameter.name: parameter.divisor for parameter in parameters if parameter.divisor > 1},
            "options": {},
            "arch": target.arch,
            "path": str(path),
            "text": SOURCE,
        }
        done = subprocess.run(
            [sys.executable, "-P", str(PROGRAM), "0"],
            input=json.dumps([request]),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
        )
        (answer,) = json.loads(done.stdout.splitlines()[-1])
        assert "error" not in answer, answer
    code = base64.b64decode(answer["image"])
    assert hashlib.sha256(code).hexdigest() == answer["image_sha256"]
    return GpuKernelObject(
        image=code,
        entry=name,
        source=SOURCE,
        arch=target.arch,
        threads=answer["warps"] * target.gpu.warp_size,
        shared_bytes=answer["shared_bytes"],
        parameters=parameters,
        launch=LaunchFacts.from_json(answer["launch"]),
        compiler=answer["compiler"],
        registers=answer["registers"],
        spill_bytes=answer["spill_bytes"],
    )

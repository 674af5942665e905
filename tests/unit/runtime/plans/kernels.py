"""Hand-written kernels, compiled once per test process, and plans over them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

from tessera import dtypes
from tessera.backend.llvm.machine_code.library import compile_text
from tessera.backend.llvm.machine_code.loading import MachineCode, load_object
from tessera.lazy.leaves.leaf import Leaf, result_structure
from tessera.runtime.memory import buffers

ELEMENTS = 16

# Each worker does its share of the 16 elements: elements worker, worker + workers, ...
_ELEMENTWISE = """
define void @{name}(ptr %table, ptr %descriptors, i64 %worker, i64 %workers, ptr %workspace) {{
entry:
  %out.dp = getelementptr i64, ptr %descriptors, i64 1
  %in.slot = load i64, ptr %descriptors
  %out.slot = load i64, ptr %out.dp
  %in.p = getelementptr i64, ptr %table, i64 %in.slot
  %out.p = getelementptr i64, ptr %table, i64 %out.slot
  %in = load ptr, ptr %in.p
  %out = load ptr, ptr %out.p
  %any = icmp slt i64 %worker, 16
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %worker, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %in, i64 %i
  %to = getelementptr float, ptr %out, i64 %i
  %x = load float, ptr %from
  %y = {operation} float %x, {constant}
  store float %y, ptr %to
  %next = add i64 %i, %workers
  %more = icmp slt i64 %next, 16
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""

# Writes (worker, workers, workspace address) as int64 into row `worker` of the buffer in slot 0.
_WITNESS = """
define void @witness(ptr %table, ptr %descriptors, i64 %worker, i64 %workers, ptr %workspace) {
  %base = load ptr, ptr %table
  %at = mul i64 %worker, 3
  %p0 = getelementptr i64, ptr %base, i64 %at
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %address = ptrtoint ptr %workspace to i64
  store i64 %worker, ptr %p0
  store i64 %workers, ptr %p1
  store i64 %address, ptr %p2
  ret void
}
"""


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel."""

    library: MachineCode
    address: int


@cache
def _library() -> MachineCode:
    texts = [
        _ELEMENTWISE.format(name="add_one", operation="fadd", constant="1.0"),
        _ELEMENTWISE.format(name="double", operation="fmul", constant="2.0"),
        _WITNESS,
    ]
    return load_object(compile_text("\n".join(texts)))


def kernel(name: str) -> Kernel:
    """One of `add_one` and `double` (descriptors: input slot, output slot; 16 floats), or `witness`."""
    return Kernel(_library(), _library().address(name))


FLOATS = result_structure((ELEMENTS,), dtypes.fp32)


def float_leaf(*values: float) -> Leaf:
    """A leaf of 16 floats, zeros after those given."""
    buffer = buffers.allocate(4 * ELEMENTS)
    floats(buffer)[:] = [*values, *[0.0] * (ELEMENTS - len(values))]
    return Leaf(FLOATS, buffer.address, buffer)


def floats(memory: buffers.Buffer | Leaf) -> ctypes.Array[ctypes.c_float]:
    """The 16 floats behind a buffer or a leaf."""
    return (ctypes.c_float * ELEMENTS).from_address(memory.address)


def words(address: int, count: int) -> list[int]:
    """`count` 64-bit integers in memory."""
    return list((ctypes.c_int64 * count).from_address(address))

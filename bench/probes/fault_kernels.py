"""Kernels that do what no kernel may, as LLVM IR: what the suite ``tune-faults`` injects, and the tests of measuring.

Each maps `in` to `out`, vectors of fp32: descriptors are (slot, byte offset, extent, stride) of `in`, then of `out`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from string import Template

from llvmlite.binding import get_host_cpu_name

from tessera.backend.contract import KernelObject, Parameter
from tessera.backend.llvm.machine_code.library import compile_text
from tessera.tuning.measure.checking import FullReference, check_output
from tessera.tuning.measure.conditions import Cache
from tessera.tuning.measure.trial import Outcome
from tessera.tuning.measure.workload import Case, KernelCall, OperandSpec, Workload, materialize

_SCALE = Template("""
@calls = internal global i64 0
@text = internal constant [6 x i8] c"noise\\0A"
declare i64 @write(i32, ptr, i64)
declare void @abort()
declare void @exit(i32)
declare i32 @raise(i32)
declare i32 @pause()
declare void @llvm.trap()

define internal i64 @deep(i64 %n) {
  %room = alloca [4096 x i64]
  store volatile i64 %n, ptr %room
  %more = add i64 %n, 1
  %down = call i64 @deep(i64 %more)
  %kept = load volatile i64, ptr %room
  %sum = add i64 %down, %kept
  ret i64 %sum
}

define void @kernel(ptr %table, ptr %descriptors, i64 %worker, i64 %workers, ptr %workspace) {
entry:
  %in.slot = load i64, ptr %descriptors
  %out.slot.p = getelementptr i64, ptr %descriptors, i64 4
  %out.slot = load i64, ptr %out.slot.p
  %n.p = getelementptr i64, ptr %descriptors, i64 2
  %n = load i64, ptr %n.p
  %in.p = getelementptr i64, ptr %table, i64 %in.slot
  %in = load ptr, ptr %in.p
  %out.p = getelementptr i64, ptr %table, i64 %out.slot
  %out = load ptr, ptr %out.p
  $before
  br label %loop
loop:
  %i = phi i64 [ %worker, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %from = getelementptr float, ptr %in, i64 %i
  %x = load float, ptr %from
  %y = fmul float %x, $factor
  %to = getelementptr float, ptr %out, i64 %i
  store float %y, ptr %to
  %next = add i64 %i, %workers
  br label %loop
done:
  $after
}
""")

_COUNT = "%old = load i64, ptr @calls\n  %new = add i64 %old, 1\n  store i64 %new, ptr @calls"
_SPIN = "br label %spin\nspin:\n  br label %spin"
_CRASH = "%wild = inttoptr i64 8 to ptr\n  store volatile i32 0, ptr %wild\n  ret void"
_READ_BEHIND = "%far = getelementptr i8, ptr %in, i64 4096\n  %got = load volatile i8, ptr %far"
_SPOIL = "store volatile float 0.0, ptr %out\n  ret void"
_ELEMENTS = 1000


def scale(factor: str = "2.0", before: str = "", after: str = "ret void") -> bytes:
    """A kernel that writes `factor * in` to `out`, with instructions before and after its loop."""
    text = _SCALE.substitute(factor=factor, before=before, after=after)
    vector = Parameter("f32", (None,), (None,))
    kernel = KernelObject(
        code=compile_text(text),
        entry="kernel",
        workspace_bytes=128,
        parameters=(vector, vector),
        outputs=(1,),
        arch=get_host_cpu_name(),
        features=(),
    )
    return kernel.to_bytes()


def at_call(number: int, then: str) -> bytes:
    """Right at first; from its `number`-th call on it does `then`, which ends the function."""
    late = f"%late = icmp sge i64 %new, {number}\n  br i1 %late, label %bad, label %fine"
    after = f"{late}\nfine:\n  ret void\nbad:\n  {then}"
    return scale(before=_COUNT, after=after)


def crashing() -> bytes:
    """SIGSEGV at once."""
    return scale(after=_CRASH)


def hanging() -> bytes:
    """Never ends."""
    return scale(after=_SPIN)


def crashing_at_call(number: int) -> bytes:
    """Right at first, SIGSEGV from its `number`-th call on."""
    return at_call(number, _CRASH)


def writing(bytes_behind: int, buffer: str = "out") -> bytes:
    """Right, but it also writes one element so many bytes behind (before, if negative) the end of a buffer; its start
    where negative.
    """
    base = f"getelementptr float, ptr %{buffer}, i64 {'0' if bytes_behind < 0 else '%n'}"
    after = f"%edge = {base}\n  %behind = getelementptr i8, ptr %edge, i64 {bytes_behind}"
    return scale(after=f"{after}\n  store volatile float 0.0, ptr %behind\n  ret void")


def noisy() -> bytes:
    """Right, and prints to standard output."""
    return scale(before="%printed = call i64 @write(i32 1, ptr @text, i64 6)")


def doubling(elements: int = _ELEMENTS, cache: Cache = "warm", limit_s: float = 60.0) -> Workload:
    """The workload out = 2 in."""
    vector = OperandSpec((elements,), (1,), "fp32", seed=3)
    reference = FullReference(materialize(vector).tensor.double() * 2)
    return Workload((vector, vector), (check_output(1, reference, "fp32"),), cache=cache, time_limit_s=limit_s)


def case(workload: Workload, kernel: bytes, workers: int = 1) -> Case:
    """One launch of `kernel` on the operands of `workload`."""
    return Case(workload, (KernelCall(kernel, descriptors(workload, 0, 1), workers),))


def descriptors(workload: Workload, source: int, target: int) -> tuple[int, ...]:
    """Those of a launch from table slot `source` to `target`."""
    (elements,) = workload.operands[0].shape
    return (source, 0, elements, 1, target, 0, elements, 1)


@dataclass(frozen=True)
class Fault:
    """Something that a candidate may do, the labels that its trial may get, and whether the time limit ends it."""

    name: str
    make: Callable[[Workload], Case]
    outcomes: tuple[Outcome, ...]
    waits: bool = False


def _kernel(name: str, make: Callable[[], bytes], *outcomes: Outcome, waits: bool = False, workers: int = 1) -> Fault:
    return Fault(name, lambda workload: case(workload, make(), workers), outcomes, waits)


def _after(instructions: str) -> Callable[[], bytes]:
    return lambda: scale(after=f"{instructions}\n  ret void")


def _needing(nbytes: int) -> Callable[[Workload], Case]:
    temporary = OperandSpec((nbytes // 4,), (1,), "fp32")
    return lambda workload: replace(case(workload, scale()), temporaries=(temporary,))


def _half(workload: Workload) -> Case:
    (elements,) = workload.operands[0].shape
    return Case(workload, (KernelCall(scale(), (0, 0, elements // 2, 1, 1, 0, elements // 2, 1)),))


def _one_of_two(workload: Workload) -> Case:
    """The second worker never ends."""
    test = "%second = icmp eq i64 %worker, 1\n  br i1 %second, label %spin, label %fine"
    test += "\nfine:\n  ret void\nspin:\n  br label %spin"
    return case(workload, scale(after=test), workers=2)


FAULTS = (
    _kernel("abort()", _after("call void @abort()"), "crashed"),
    _kernel("illegal instruction", _after("call void @llvm.trap()"), "crashed"),
    _kernel("arithmetic fault (SIGFPE)", _after("call i32 @raise(i32 8)"), "crashed"),
    _kernel("stack overflow", _after("%depth = call i64 @deep(i64 0)"), "crashed"),
    _kernel("exit(0)", _after("call void @exit(i32 0)"), "crashed"),
    _kernel("crash when it is timed", lambda: crashing_at_call(4), "crashed"),
    _kernel("endless loop", hanging, "timeout", waits=True),
    _kernel("endless loop when it is timed", lambda: at_call(4, _SPIN), "timeout", waits=True),
    _kernel("waits for ever", _after("call i32 @pause()"), "timeout", waits=True),
    _kernel("stops itself (SIGSTOP)", _after("call i32 @raise(i32 19)"), "timeout", waits=True),
    Fault("one of two threads never ends", _one_of_two, ("timeout",), waits=True),
    _kernel("write to address 8", crashing, "crashed"),
    _kernel("write one element behind the output", lambda: writing(0), "wrong"),
    _kernel("write a page behind the output", lambda: writing(4096), "crashed"),
    _kernel("write a page before the output", lambda: writing(-4096), "crashed"),
    _kernel("write into an input", _after("store volatile float 0.0, ptr %in"), "crashed"),
    _kernel("read a page behind an input", _after(_READ_BEHIND), "crashed"),
    _kernel("wrong answer", lambda: scale("3.0"), "wrong"),
    _kernel("not a number", lambda: scale("0x7FF8000000000000"), "wrong"),
    Fault("half of the output is not written", _half, ("wrong",)),
    _kernel("wrong answer when it is timed", lambda: at_call(2, _SPOIL), "wrong"),
    Fault("more memory than there are addresses", _needing(1 << 48), ("out_of_memory",)),
    _kernel("killed by the system (SIGKILL)", _after("call i32 @raise(i32 9)"), "out_of_memory"),
)

"""Hand-written kernels for the measuring tests, as LLVM IR: right, wrong, crashing, hanging ones.

Each maps `in` to `out`, vectors of fp32: descriptors are (slot, byte offset, extent, stride) of `in`, then of `out`.
"""

from __future__ import annotations

from string import Template

from llvmlite.binding import get_host_cpu_name

from tessera.backend.contract import KernelObject, Parameter
from tessera.backend.llvm.library import compile_text
from tessera.tuning.checking import FullReference, check_output
from tessera.tuning.workload import Case, Launch, OperandSpec, Workload, materialize

_SCALE = Template("""
@calls = internal global i64 0
@text = internal constant [6 x i8] c"noise\\0A"
declare i64 @write(i32, ptr, i64)

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

_SPIN = "br label %spin\nspin:\n  br label %spin"
_CRASH = "%wild = inttoptr i64 8 to ptr\n  store volatile i32 0, ptr %wild\n  ret void"


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


def crashing() -> bytes:
    return scale(after=_CRASH)


def hanging() -> bytes:
    return scale(after=_SPIN)


def crashing_at_call(number: int) -> bytes:
    """Right at first, SIGSEGV at its `number`-th call."""
    count = "%old = load i64, ptr @calls\n  %new = add i64 %old, 1\n  store i64 %new, ptr @calls"
    after = (
        f"%late = icmp sge i64 %new, {number}\n  br i1 %late, label %crash, label %fine\n"
        f"fine:\n  ret void\ncrash:\n  {_CRASH}"
    )
    return scale(before=count, after=after)


def overrunning() -> bytes:
    """Right, but it also writes the element behind the output."""
    after = "%behind = getelementptr float, ptr %out, i64 %n\n  store float 0.0, ptr %behind\n  ret void"
    return scale(after=after)


def noisy() -> bytes:
    """Right, and prints to standard output."""
    return scale(before="%printed = call i64 @write(i32 1, ptr @text, i64 6)")


def doubling(elements: int = 1000, cache: str = "warm", limit_s: float = 60.0) -> Workload:
    """The workload out = 2 in."""
    vector = OperandSpec((elements,), (1,), "fp32", seed=3)
    reference = FullReference(materialize(vector).tensor.double() * 2)
    checks = (check_output(1, reference, "fp32"),)
    return Workload((vector, vector), checks, cache=cache, time_limit_s=limit_s)  # type: ignore[arg-type]


def case(workload: Workload, kernel: bytes, workers: int = 1) -> Case:
    """One launch of `kernel` on the operands of `workload`."""
    return Case(workload, (Launch(kernel, descriptors(workload, 0, 1), workers),))


def descriptors(workload: Workload, source: int, target: int) -> tuple[int, ...]:
    """Those of a launch from table slot `source` to `target`."""
    (elements,) = workload.operands[0].shape
    return (source, 0, elements, 1, target, 0, elements, 1)

"""The LLVM IR text of the probes behind the measured ceilings.

Every probe has the kernel ABI of `backend/llvm/__init__.py`, so that the plan driver runs it on torch's
threads like any kernel. Descriptors: word 0 the repetitions, word 1 the bytes per worker. Table: slot 0 the source,
slot 1 the destination; worker w works on bytes [w * bytes, (w + 1) * bytes) of each, again and again. Results that
nobody reads go to the workspace, so that no computation can be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LINES_PER_STEP: Final = 8
"""Vectors that a memory probe moves per iteration; bytes per worker must be a multiple of this many vectors."""

_SIGNATURE: Final = "(ptr %table, ptr %descriptors, i64 %worker, i64 %workers, ptr %sink)"

_ENTRY: Final = """entry:
  %bytes.p = getelementptr inbounds i64, ptr %descriptors, i64 1
  %repetitions = load i64, ptr %descriptors
  %bytes = load i64, ptr %bytes.p
  %offset = mul i64 %worker, %bytes
  %destination.p = getelementptr inbounds i64, ptr %table, i64 1
  %source.base = load ptr, ptr %table
  %destination.base = load ptr, ptr %destination.p
  %source = getelementptr i8, ptr %source.base, i64 %offset
  %destination = getelementptr i8, ptr %destination.base, i64 %offset
"""


def compute_probe(name: str, vector: str, operand: str, instruction: str, accumulators: int) -> str:
    """A function that runs `instruction` on `accumulators` independent accumulators of type `vector`, `repetitions`
    times.

    `instruction` has the fields {acc} and {x}; `operand` is the type of the multiplied vector %x, loaded from the
    source so that its value is not known. Enough accumulators hide the latency of the multiply-add behind its
    throughput.
    """
    indices = range(accumulators)
    lines = [f"define void @{name}{_SIGNATURE} {{", _ENTRY + f"  %x = load {operand}, ptr %source, align 4"]
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]"]
    lines += [f"  %acc{n} = phi {vector} [ zeroinitializer, %entry ], [ %next{n}, %loop ]" for n in indices]
    lines += [f"  %next{n} = {instruction.format(acc=f'%acc{n}', x='%x')}" for n in indices]
    lines += _loop_end("%repetitions", "i", "loop", "done")
    lines.append("done:")
    for n in indices:
        lines.append(f"  %out{n} = getelementptr {vector}, ptr %sink, i64 {n}")
        lines.append(f"  store {vector} %next{n}, ptr %out{n}, align 4")
    return "\n".join([*lines, "  ret void", "}"])


def memory_probe(name: str, access: str, vector_bytes: int) -> str:
    """A function that reads, writes or copies `bytes` per worker, `repetitions` times.

    `access` is "read", "write" or "copy"; the last two also as "write_nt" and "copy_nt", with non-temporal stores.
    """
    vector = f"<{vector_bytes // 4} x i32>"
    indices = range(LINES_PER_STEP)
    reads, writes = not access.startswith("write"), access != "read"
    hint = ", !nontemporal !0" if access.endswith("_nt") else ""
    step = LINES_PER_STEP * vector_bytes
    lines = [f"define void @{name}{_SIGNATURE} {{", _ENTRY + "  br label %again", "again:"]
    lines.append("  %r = phi i64 [ 0, %entry ], [ %r.next, %swept ]")
    lines += [f"  %kept{n} = phi {vector} [ zeroinitializer, %entry ], [ %sum{n}, %swept ]" for n in indices]
    lines += ["  br label %sweep", "sweep:", "  %at = phi i64 [ 0, %again ], [ %at.next, %sweep ]"]
    lines += [f"  %acc{n} = phi {vector} [ %kept{n}, %again ], [ %sum{n}, %sweep ]" for n in indices]
    for n in indices:
        lines.append(f"  %at{n} = add i64 %at, {n * vector_bytes}")
        lines.append(f"  %from{n} = getelementptr i8, ptr %source, i64 %at{n}")
        lines.append(f"  %to{n} = getelementptr i8, ptr %destination, i64 %at{n}")
        if reads:
            lines.append(f"  %value{n} = load {vector}, ptr %from{n}, align {vector_bytes}")
        # A read is kept by an exclusive or, of which every CPU does as many per cycle as loads; a copy keeps nothing.
        taken = f"xor {vector} %acc{n}, %value{n}" if access == "read" else f"or {vector} %acc{n}, zeroinitializer"
        lines.append(f"  %sum{n} = {taken}")
    if writes:
        values = [f"%value{n}" if reads else "zeroinitializer" for n in indices]
        lines += [f"  store {vector} {values[n]}, ptr %to{n}, align {vector_bytes}{hint}" for n in indices]
    lines += [f"  %at.next = add i64 %at, {step}", "  %more = icmp slt i64 %at.next, %bytes"]
    lines += ["  br i1 %more, label %sweep, label %swept", "swept:", *_loop_end("%repetitions", "r", "again", "done")]
    lines.append("done:")
    for n in indices:
        lines.append(f"  %out{n} = getelementptr {vector}, ptr %sink, i64 {n}")
        lines.append(f"  store {vector} %sum{n}, ptr %out{n}, align 4")
    return "\n".join([*lines, "  ret void", "}"])


CHAIN_CYCLES: Final = 32
"""Cycles of one repetition of `chain_probe`: its instructions take one each on every core, and wait for each other."""


def chain_probe(name: str) -> str:
    """A function of which each instruction waits for the one before: additions and exclusive ors in turn."""
    lines = [f"define void @{name}{_SIGNATURE} {{", _ENTRY + "  %a = load i64, ptr %source, align 4"]
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]"]
    lines.append(f"  %x0 = phi i64 [ 1, %entry ], [ %x{CHAIN_CYCLES}, %loop ]")
    lines += [f"  %x{n + 1} = {('add', 'xor')[n % 2]} i64 %x{n}, %a" for n in range(CHAIN_CYCLES)]
    lines += [*_loop_end("%repetitions", "i", "loop", "done"), "done:"]
    return "\n".join([*lines, f"  store i64 %x{CHAIN_CYCLES}, ptr %sink, align 8", "  ret void", "}"])


CHASE_STEPS: Final = 16
"""Loads of one repetition of `chase_probe`."""


def chase_probe(name: str) -> str:
    """A function that follows addresses, each of which stands where the one before says, from the source on."""
    lines = [f"define void @{name}{_SIGNATURE} {{", _ENTRY + "  br label %loop", "loop:"]
    lines += ["  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]"]
    lines.append(f"  %p0 = phi ptr [ %source, %entry ], [ %p{CHASE_STEPS}, %loop ]")
    lines += [f"  %p{n + 1} = load ptr, ptr %p{n}, align 8" for n in range(CHASE_STEPS)]
    lines += [*_loop_end("%repetitions", "i", "loop", "done"), "done:"]
    return "\n".join([*lines, f"  store ptr %p{CHASE_STEPS}, ptr %sink, align 8", "  ret void", "}"])


def _loop_end(limit: str, counter: str, again: str, done: str) -> list[str]:
    return [
        f"  %{counter}.next = add i64 %{counter}, 1",
        f"  %{counter}.more = icmp slt i64 %{counter}.next, {limit}",
        f"  br i1 %{counter}.more, label %{again}, label %{done}",
    ]


def module(functions: Sequence[str], declarations: Sequence[str]) -> str:
    """One module of probes."""
    return "\n\n".join([*declarations, *functions, "!0 = !{i32 1}", ""])


def fma_declaration(lanes: int, element: str, suffix: str) -> str:
    """The declaration of the fused multiply-add on such vectors."""
    vector = f"<{lanes} x {element}>"
    return f"declare {vector} @llvm.fma.v{lanes}{suffix}({vector}, {vector}, {vector})"


def fma_probe(name: str, lanes: int, element: str, suffix: str, accumulators: int) -> str:
    """The probe of fused multiply-adds."""
    vector = f"<{lanes} x {element}>"
    call = f"call {vector} @llvm.fma.v{lanes}{suffix}({vector} {{x}}, {vector} {{x}}, {vector} {{acc}})"
    return compute_probe(name, vector, vector, call, accumulators)


DPBF16_DECLARATION: Final = (
    "declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)"
)


def dpbf16_probe(name: str, accumulators: int) -> str:
    """The probe of bf16 dot products: 32 multiply-adds an instruction."""
    call = (
        "call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> {acc}, <32 x bfloat> {x}, <32 x bfloat> {x})"
    )
    return compute_probe(name, "<16 x float>", "<32 x bfloat>", call, accumulators)


DPBUSD_DECLARATION: Final = "declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)"


def dpbusd_probe(name: str, accumulators: int) -> str:
    """The probe of int8 dot products: 64 multiply-adds an instruction."""
    call = "call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> {acc}, <16 x i32> {x}, <16 x i32> {x})"
    return compute_probe(name, "<16 x i32>", "<16 x i32>", call, accumulators)


TILE_ACCUMULATORS: Final = 4
"""Tiles of sums that hide the latency of a matrix unit's product (52 cycles) behind its throughput (16)."""
_TILE_ROWS: Final = 16
_TILE_STRIDE: Final = 64


def tile_flop(element_bytes: int) -> float:
    """The FLOP of one repetition of `tile_probe`."""
    return 2.0 * TILE_ACCUMULATORS * _TILE_ROWS * (_TILE_STRIDE // 4) * (_TILE_STRIDE // element_bytes)


def tile_probe(name: str, instruction: str) -> str:
    """A function that runs a product of an x86 matrix unit (AMX) on whole tiles of 16 rows by 64 bytes."""
    shape, indices = f"i16 {_TILE_ROWS}, i16 {_TILE_STRIDE}", range(TILE_ACCUMULATORS)
    lines = [f"define void @{name}{_SIGNATURE} {{", _ENTRY.rstrip()]
    loaded = f"call x86_amx @llvm.x86.tileloadd64.internal({shape}, ptr %source, i64 {_TILE_STRIDE})"
    lines += [f"  %{name} = {loaded}" for name in ("x", "y")]  # the instruction refuses one register for both
    lines += [f"  %zero{n} = call x86_amx @llvm.x86.tilezero.internal({shape})" for n in indices]
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]"]
    lines += [f"  %acc{n} = phi x86_amx [ %zero{n}, %entry ], [ %next{n}, %loop ]" for n in indices]
    product = f"call x86_amx @llvm.x86.{instruction}.internal({shape}, i16 {_TILE_STRIDE}"
    lines += [f"  %next{n} = {product}, x86_amx %acc{n}, x86_amx %x, x86_amx %y)" for n in indices]
    lines += [*_loop_end("%repetitions", "i", "loop", "done"), "done:"]
    for n in indices:
        lines.append(f"  %out{n} = getelementptr i8, ptr %sink, i64 {n * _TILE_ROWS * _TILE_STRIDE}")
        stored = f"{shape}, ptr %out{n}, i64 {_TILE_STRIDE}, x86_amx %next{n}"
        lines.append(f"  call void @llvm.x86.tilestored64.internal({stored})")
    return "\n".join([*lines, "  ret void", "}"])


def tile_declarations(instructions: Sequence[str]) -> list[str]:
    """The declarations that such probes need."""
    found = [
        "declare x86_amx @llvm.x86.tilezero.internal(i16, i16)",
        "declare x86_amx @llvm.x86.tileloadd64.internal(i16, i16, ptr, i64)",
        "declare void @llvm.x86.tilestored64.internal(i16, i16, ptr, i64, x86_amx)",
    ]
    product = "(i16, i16, i16, x86_amx, x86_amx, x86_amx)"
    return found + [f"declare x86_amx @llvm.x86.{name}.internal{product}" for name in instructions]

"""The LLVM IR text of what ranks of one host do in shared memory: announce, wait, reduce in rank order.

`sharding/transport/lanes.py` says how the memory is laid out that ranks share, and `sharding/transport/native.py` how a
call is laid out; both are written down there once, and the offsets below are handed in from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Template
from typing import Final, NamedTuple

LANES: Final = 16
"""Elements that a reduction computes at once."""

_WAITING: Final = Template("""
declare i32 @clock_gettime(i32, ptr)
declare i64 @syscall(i64, ...)
declare ptr @memcpy(ptr, ptr, i64)
declare void @$pause_function

define i64 @tessera_now() {
  %time = alloca [2 x i64], align 16
  %failure = call i32 @clock_gettime(i32 $monotonic, ptr %time)
  %seconds = load i64, ptr %time
  %rest.p = getelementptr inbounds i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.p
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}

; Wakes all that sleep on a bell. Those who are about to sleep see that it has another number.
define void @tessera_ring(ptr %bell) {
entry:
  %before = atomicrmw add ptr %bell, i32 1 seq_cst
  %sleepers.p = getelementptr inbounds i8, ptr %bell, i64 $sleepers
  %sleepers = load atomic i32, ptr %sleepers.p seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %wake, label %done
wake:
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr %bell, i64 1, i64 2147483647, ptr null, ptr null, i64 0)
  br label %done
done:
  ret void
}

; Until a word has a value: 0; 1 after a time limit, 2 once the fault word is set. Looks again and again for a while,
; then sleeps on the bell of whoever writes the word.
define i64 @tessera_await(ptr %word, i64 %wanted, ptr %bell, ptr %fault, i64 %spin, i64 %limit) {
entry:
  %first = load atomic i64, ptr %word acquire, align 8
  %there = icmp eq i64 %first, %wanted
  br i1 %there, label %met, label %begin
begin:
  %limits = alloca [2 x i64], align 16
  %start = call i64 @tessera_now()
  %spun = add i64 %start, %spin
  %sleepers.p = getelementptr inbounds i8, ptr %bell, i64 $sleepers
  br label %look
look:
  %round = phi i32 [ 0, %begin ], [ %round.next, %again ], [ 0, %unspent ]
  %value = load atomic i64, ptr %word acquire, align 8
  %is = icmp eq i64 %value, %wanted
  br i1 %is, label %met, label %pause
pause:
  $pause
  %round.next = add i32 %round, 1
  %full = icmp eq i32 %round.next, 16
  br i1 %full, label %clock, label %again
again:
  br label %look
clock:
  %failed = load atomic i32, ptr %fault acquire, align 4
  %is.failed = icmp ne i32 %failed, 0
  br i1 %is.failed, label %faulted, label %spent
spent:
  %now = call i64 @tessera_now()
  %over = icmp sge i64 %now, %spun
  br i1 %over, label %doze, label %unspent
unspent:
  br label %look
doze:
  %number = load atomic i32, ptr %bell seq_cst, align 4
  %before = atomicrmw add ptr %sleepers.p, i32 1 seq_cst
  %last = load atomic i64, ptr %word seq_cst, align 8
  %last.is = icmp eq i64 %last, %wanted
  br i1 %last.is, label %up, label %sleep
sleep:
  %rest.ns = srem i64 %limit, 1000000000
  %whole.s = sdiv i64 %limit, 1000000000
  %rest.ns.p = getelementptr inbounds i64, ptr %limits, i64 1
  store i64 %whole.s, ptr %limits
  store i64 %rest.ns, ptr %rest.ns.p
  %number.i64 = zext i32 %number to i64
  %slept = call i64 (i64, ...) @syscall(i64 $futex, ptr %bell, i64 0, i64 %number.i64, ptr %limits, ptr null, i64 0)
  br label %up
up:
  %after = atomicrmw sub ptr %sleepers.p, i32 1 seq_cst
  %final = load atomic i64, ptr %word acquire, align 8
  %final.is = icmp eq i64 %final, %wanted
  br i1 %final.is, label %met, label %awake
awake:
  %late = load atomic i32, ptr %fault acquire, align 4
  %is.late = icmp ne i32 %late, 0
  br i1 %is.late, label %faulted, label %timed
timed:
  %end = call i64 @tessera_now()
  %passed = sub i64 %end, %start
  %expired = icmp sge i64 %passed, %limit
  br i1 %expired, label %timeout, label %doze
met:
  ret i64 0
timeout:
  ret i64 1
faulted:
  ret i64 2
}

; Announces an exchange: what it is, where its operand lies, when; the number last, with release order.
define void @tessera_publish(ptr %lane, i64 %number, i64 %fingerprint, i64 %offset) {
  %slot = and i64 %number, $mask
  %record.at = mul i64 %slot, $record
  %record.from = add i64 %record.at, $records
  %record = getelementptr inbounds i8, ptr %lane, i64 %record.from
  %fingerprint.p = getelementptr inbounds i64, ptr %record, i64 1
  %offset.p = getelementptr inbounds i64, ptr %record, i64 2
  %stamp.p = getelementptr inbounds i64, ptr %record, i64 3
  store i64 %fingerprint, ptr %fingerprint.p
  store i64 %offset, ptr %offset.p
  %now = call i64 @tessera_now()
  store i64 %now, ptr %stamp.p
  store atomic i64 %number, ptr %record release, align 8
  call void @tessera_ring(ptr %lane)
  ret void
}

; Says that this rank reads no operand of an exchange any more.
define void @tessera_finish(ptr %lane, i64 %number) {
  %slot = and i64 %number, $mask
  %word.at = mul i64 %slot, 8
  %word.from = add i64 %word.at, $finished
  %word = getelementptr inbounds i8, ptr %lane, i64 %word.from
  store atomic i64 %number, ptr %word release, align 8
  call void @tessera_ring(ptr %lane)
  ret void
}

; All ranks' small operands, through the slots of their lanes, reduced by every rank for itself. A call that comes back
; with 1 is made again as it is, and goes on where it was; `stage` and `peer` of the call say where.
define i64 @tessera_one_shot(ptr %call) {
entry:
  %lanes.p = getelementptr inbounds i64, ptr %call, i64 0
  %parts.p = getelementptr inbounds i64, ptr %call, i64 1
  %size.p = getelementptr inbounds i64, ptr %call, i64 2
  %rank.p = getelementptr inbounds i64, ptr %call, i64 3
  %fault.p = getelementptr inbounds i64, ptr %call, i64 4
  %spin.p = getelementptr inbounds i64, ptr %call, i64 5
  %limit.p = getelementptr inbounds i64, ptr %call, i64 6
  %number.p = getelementptr inbounds i64, ptr %call, i64 7
  %fingerprint.p = getelementptr inbounds i64, ptr %call, i64 8
  %bytes.p = getelementptr inbounds i64, ptr %call, i64 9
  %count.p = getelementptr inbounds i64, ptr %call, i64 10
  %reduce.p = getelementptr inbounds i64, ptr %call, i64 11
  %operand.p = getelementptr inbounds i64, ptr %call, i64 12
  %result.p = getelementptr inbounds i64, ptr %call, i64 13
  %stage.p = getelementptr inbounds i64, ptr %call, i64 14
  %peer.p = getelementptr inbounds i64, ptr %call, i64 15
  %lanes = load ptr, ptr %lanes.p
  %parts = load ptr, ptr %parts.p
  %size = load i64, ptr %size.p
  %rank = load i64, ptr %rank.p
  %fault = load ptr, ptr %fault.p
  %spin = load i64, ptr %spin.p
  %limit = load i64, ptr %limit.p
  %number = load i64, ptr %number.p
  %fingerprint = load i64, ptr %fingerprint.p
  %stage = load i64, ptr %stage.p
  %peer.first = load i64, ptr %peer.p
  %slot = and i64 %number, $mask
  %word.at = mul i64 %slot, 8
  %word.from = add i64 %word.at, $finished
  %record.at = mul i64 %slot, $record
  %record.from = add i64 %record.at, $records
  %memory.at = mul i64 %slot, $slot_bytes
  %memory.from = add i64 %memory.at, $slots
  %earlier = sub i64 %number, $depth
  %own.p = getelementptr inbounds ptr, ptr %lanes, i64 %rank
  %own = load ptr, ptr %own.p
  %begun = icmp ne i64 %stage, 0
  br i1 %begun, label %peers, label %free
free:
  %f = phi i64 [ %peer.first, %entry ], [ %f.next, %freed ]
  %f.more = icmp slt i64 %f, %size
  br i1 %f.more, label %one.free, label %publish
one.free:
  %f.lane.p = getelementptr inbounds ptr, ptr %lanes, i64 %f
  %f.lane = load ptr, ptr %f.lane.p
  %f.word = getelementptr inbounds i8, ptr %f.lane, i64 %word.from
  %f.code = call i64 @tessera_await(ptr %f.word, i64 %earlier, ptr %f.lane, ptr %fault, i64 %spin, i64 %limit)
  %f.ok = icmp eq i64 %f.code, 0
  br i1 %f.ok, label %freed, label %f.back
freed:
  %f.next = add i64 %f, 1
  br label %free
f.back:
  store i64 %f, ptr %peer.p
  ret i64 %f.code
publish:
  %memory = getelementptr inbounds i8, ptr %own, i64 %memory.from
  %operand = load ptr, ptr %operand.p
  %bytes = load i64, ptr %bytes.p
  %copied = call ptr @memcpy(ptr %memory, ptr %operand, i64 %bytes)
  call void @tessera_publish(ptr %own, i64 %number, i64 %fingerprint, i64 -1)
  store i64 1, ptr %stage.p
  br label %peers
peers:
  %q.first = phi i64 [ %peer.first, %entry ], [ 0, %publish ]
  br label %one
one:
  %q = phi i64 [ %q.first, %peers ], [ %q.next, %same ]
  %q.more = icmp slt i64 %q, %size
  br i1 %q.more, label %look, label %all
look:
  %q.lane.p = getelementptr inbounds ptr, ptr %lanes, i64 %q
  %q.lane = load ptr, ptr %q.lane.p
  %q.record = getelementptr inbounds i8, ptr %q.lane, i64 %record.from
  %q.code = call i64 @tessera_await(ptr %q.record, i64 %number, ptr %q.lane, ptr %fault, i64 %spin, i64 %limit)
  %q.ok = icmp eq i64 %q.code, 0
  br i1 %q.ok, label %came, label %q.back
came:
  %q.fingerprint.p = getelementptr inbounds i64, ptr %q.record, i64 1
  %q.fingerprint = load i64, ptr %q.fingerprint.p
  %q.same = icmp eq i64 %q.fingerprint, %fingerprint
  br i1 %q.same, label %same, label %other
same:
  %q.memory = getelementptr inbounds i8, ptr %q.lane, i64 %memory.from
  %q.part.p = getelementptr inbounds ptr, ptr %parts, i64 %q
  store ptr %q.memory, ptr %q.part.p
  %q.next = add i64 %q, 1
  br label %one
q.back:
  store i64 %q, ptr %peer.p
  ret i64 %q.code
other:
  store i64 %q, ptr %peer.p
  ret i64 3
all:
  %reduce = load ptr, ptr %reduce.p
  %result = load ptr, ptr %result.p
  %count = load i64, ptr %count.p
  call void %reduce(ptr %result, ptr %parts, i64 %size, i64 %count)
  call void @tessera_finish(ptr %own, i64 %number)
  ret i64 0
}
""")

_REDUCTION: Final = Template("""
define void @$name(ptr %result, ptr %parts, i64 %size, i64 %count) {
entry:
  %size.scalar = sitofp i64 %size to double
  $whole_divisor
  $rest_divisor
  %first = load ptr, ptr %parts
  %blocks = and i64 %count, -$lanes
  br label %block
block:
  %i = phi i64 [ 0, %entry ], [ %i.next, %stored ]
  %in.blocks = icmp slt i64 %i, %blocks
  br i1 %in.blocks, label %begin, label %single
begin:
  %first.p = getelementptr inbounds $stored, ptr %first, i64 %i
  $whole_first
  br label %part
part:
  %p = phi i64 [ 1, %begin ], [ %p.next, %added ]
  %sum = phi <$lanes x $wide> [ %whole.first, %begin ], [ %sum.next, %added ]
  %p.more = icmp slt i64 %p, %size
  br i1 %p.more, label %add, label %store
add:
  %part.pp = getelementptr inbounds ptr, ptr %parts, i64 %p
  %part.base = load ptr, ptr %part.pp
  %part.p = getelementptr inbounds $stored, ptr %part.base, i64 %i
  $whole_part
  $whole_fold
  br label %added
added:
  %p.next = add i64 %p, 1
  br label %part
store:
  %out.p = getelementptr inbounds $stored, ptr %result, i64 %i
  $whole_store
  br label %stored
stored:
  %i.next = add i64 %i, $lanes
  br label %block
single:
  %j = phi i64 [ %blocks, %block ], [ %j.next, %j.stored ]
  %in.rest = icmp slt i64 %j, %count
  br i1 %in.rest, label %j.begin, label %done
j.begin:
  %j.first.p = getelementptr inbounds $stored, ptr %first, i64 %j
  $rest_first
  br label %j.part
j.part:
  %r = phi i64 [ 1, %j.begin ], [ %r.next, %j.added ]
  %j.sum = phi <1 x $wide> [ %rest.first, %j.begin ], [ %j.sum.next, %j.added ]
  %r.more = icmp slt i64 %r, %size
  br i1 %r.more, label %j.add, label %j.store
j.add:
  %j.part.pp = getelementptr inbounds ptr, ptr %parts, i64 %r
  %j.part.base = load ptr, ptr %j.part.pp
  %j.part.p = getelementptr inbounds $stored, ptr %j.part.base, i64 %j
  $rest_part
  $rest_fold
  br label %j.added
j.added:
  %r.next = add i64 %r, 1
  br label %j.part
j.store:
  %j.out.p = getelementptr inbounds $stored, ptr %result, i64 %j
  $rest_store
  br label %j.stored
j.stored:
  %j.next = add i64 %j, 1
  br label %single
done:
  ret void
}
""")


MACHINES: Final[Mapping[str, tuple[int, str, str]]] = {
    "x86_64": (202, "call void @llvm.x86.sse2.pause()", "llvm.x86.sse2.pause()"),
    "aarch64": (98, "call void @llvm.aarch64.hint(i32 1)", "llvm.aarch64.hint(i32)"),
}
"""By machine, the number of the system call futex, and what a waiting loop runs, with its declaration."""


class Number(NamedTuple):
    """How numbers of a dtype are stored, and what they are computed as: LLVM's types."""

    stored: str
    wide: str
    align: int

    @property
    def is_float(self) -> bool:
        """Whether sums are of floating-point numbers."""
        return self.wide in ("float", "double")


NUMBERS: Final[Mapping[str, Number]] = {
    "fp32": Number("float", "float", 4),
    "fp64": Number("double", "double", 8),
    "fp16": Number("half", "float", 2),
    "bf16": Number("i16", "float", 2),
    "int8": Number("i8", "i8", 1),
    "int32": Number("i32", "i32", 4),
    "int64": Number("i64", "i64", 8),
}
"""The dtypes that native code reduces."""

_FLOAT_FOLDS: Final = {"sum": "fadd", "avg": "fadd", "product": "fmul", "min": "minimum", "max": "maximum"}
_INTEGER_FOLDS: Final = {"sum": "add", "product": "mul", "min": "min", "max": "max"}


def reductions(number: Number) -> Mapping[str, str]:
    """The reductions that native code has for a dtype, with LLVM's word for each. Averages of integers are none."""
    return _FLOAT_FOLDS if number.is_float else _INTEGER_FOLDS


def reduction_name(dtype: str, reduction: str) -> str:
    """The symbol of a reduction."""
    return f"tessera_reduce_{dtype}_{reduction}"


def exchange_text(*, machine: str, monotonic: int, layout: Mapping[str, int], depth: int, slot_bytes: int) -> str:
    """The module for a machine of `MACHINES`. `layout` has the offsets of a lane, `depth` is how many exchanges may be
    under way, `monotonic` the number of the clock.
    """
    futex, pause, pause_function = MACHINES[machine]
    waiting = _WAITING.substitute(
        layout,
        pause=pause,
        pause_function=pause_function,
        futex=futex,
        monotonic=monotonic,
        depth=depth,
        mask=depth - 1,
        slot_bytes=slot_bytes,
    )
    return waiting + "".join(_reductions())


def _reductions() -> Iterator[str]:
    intrinsics: set[str] = set()
    for dtype, number in NUMBERS.items():
        for reduction, fold in reductions(number).items():
            halves = {
                **_half("whole", LANES, number, reduction, fold, "part", "sum", "first.p", "part.p", "out.p"),
                **_half("rest", 1, number, reduction, fold, "j.part", "j.sum", "j.first.p", "j.part.p", "j.out.p"),
            }
            name = reduction_name(dtype, reduction)
            yield _REDUCTION.substitute(halves, name=name, stored=number.stored, wide=number.wide, lanes=LANES)
            intrinsics |= {_declaration(number, fold, lanes) for lanes in (LANES, 1)}
    yield "\n".join(sorted(intrinsics - {""}))


def _half(
    half: str, lanes: int, number: Number, reduction: str, fold: str, part: str, total: str, *places: str
) -> dict[str, str]:
    """What a reduction does with many elements at once ("whole") or with one ("rest")."""
    first, other, out = places
    wide = f"<{lanes} x {number.wide}>"
    divisor = "" if reduction != "avg" else _divisor(half, lanes, number)
    lines = [_narrowed(half, lanes, number, f"%{total}")]
    if reduction == "avg":
        lines = [
            f"%{half}.mean = fdiv {wide} %{total}, %{half}.divisor",
            _narrowed(half, lanes, number, f"%{half}.mean"),
        ]
    stored = f"<{lanes} x {number.stored}>"
    lines.append(f"store {stored} %{half}.narrow, ptr %{out}, align {number.align}")
    return {
        f"{half}_divisor": divisor,
        f"{half}_first": _loaded(f"{half}.first", lanes, number, first),
        f"{half}_part": _loaded(f"{half}.value", lanes, number, other),
        f"{half}_fold": _folded(f"%{total}.next", lanes, number, fold, f"%{total}", f"%{half}.value"),
        f"{half}_store": "\n  ".join(lines),
    }


def _divisor(half: str, lanes: int, number: Number) -> str:
    wide = f"<{lanes} x {number.wide}>"
    scalar = f"%{half}.scalar = fptrunc double %size.scalar to float"
    if number.wide == "double":
        scalar = f"%{half}.scalar = fadd double %size.scalar, 0.0"
    return "\n  ".join(
        (
            scalar,
            f"%{half}.one = insertelement {wide} poison, {number.wide} %{half}.scalar, i32 0",
            f"%{half}.divisor = shufflevector {wide} %{half}.one, {wide} poison, <{lanes} x i32> zeroinitializer",
        )
    )


def _loaded(name: str, lanes: int, number: Number, place: str) -> str:
    stored, wide = f"<{lanes} x {number.stored}>", f"<{lanes} x {number.wide}>"
    if number.stored == number.wide:
        return f"%{name} = load {stored}, ptr %{place}, align {number.align}"
    lines = [f"%{name}.stored = load {stored}, ptr %{place}, align {number.align}"]
    if number.stored == "half":
        lines.append(f"%{name} = fpext {stored} %{name}.stored to {wide}")
    else:  # bf16: the upper half of fp32
        words = f"<{lanes} x i32>"
        lines += [
            f"%{name}.words = zext {stored} %{name}.stored to {words}",
            f"%{name}.shifted = shl {words} %{name}.words, {_splat(lanes, 16)}",
            f"%{name} = bitcast {words} %{name}.shifted to {wide}",
        ]
    return "\n  ".join(lines)


def _narrowed(half: str, lanes: int, number: Number, value: str) -> str:
    """`%<half>.narrow`: a value as it is stored."""
    stored, wide = f"<{lanes} x {number.stored}>", f"<{lanes} x {number.wide}>"
    name = f"%{half}.narrow"
    if number.stored == number.wide:
        return f"{name} = bitcast {wide} {value} to {stored}"
    if number.stored == "half":
        return f"{name} = fptrunc {wide} {value} to {stored}"
    words = f"<{lanes} x i32>"
    return "\n  ".join(  # rounds to nearest, ties to even; NaN stays NaN
        (
            f"%{half}.bits = bitcast {wide} {value} to {words}",
            f"%{half}.high = lshr {words} %{half}.bits, {_splat(lanes, 16)}",
            f"%{half}.odd = and {words} %{half}.high, {_splat(lanes, 1)}",
            f"%{half}.bias = add {words} %{half}.odd, {_splat(lanes, 0x7FFF)}",
            f"%{half}.biased = add {words} %{half}.bits, %{half}.bias",
            f"%{half}.rounded = lshr {words} %{half}.biased, {_splat(lanes, 16)}",
            f"%{half}.nan = fcmp uno {wide} {value}, {value}",
            f"%{half}.chosen = select <{lanes} x i1> %{half}.nan, {words} {_splat(lanes, 0x7FC0)}, "
            f"{words} %{half}.rounded",
            f"{name} = trunc {words} %{half}.chosen to {stored}",
        )
    )


def _folded(name: str, lanes: int, number: Number, fold: str, left: str, right: str) -> str:
    wide = f"<{lanes} x {number.wide}>"
    if fold in ("minimum", "maximum", "min", "max"):
        return f"{name} = call {wide} @{_intrinsic(number, fold, lanes)}({wide} {left}, {wide} {right})"
    return f"{name} = {fold} {wide} {left}, {right}"


def _intrinsic(number: Number, fold: str, lanes: int) -> str:
    if number.is_float:
        return f"llvm.{fold}.v{lanes}f{32 if number.wide == 'float' else 64}"
    return f"llvm.s{fold}.v{lanes}{number.wide}"


def _declaration(number: Number, fold: str, lanes: int) -> str:
    if fold not in ("minimum", "maximum", "min", "max"):
        return ""
    wide = f"<{lanes} x {number.wide}>"
    return f"declare {wide} @{_intrinsic(number, fold, lanes)}({wide}, {wide})"


def _splat(lanes: int, value: int) -> str:
    return "<" + ", ".join([f"i32 {value}"] * lanes) + ">"

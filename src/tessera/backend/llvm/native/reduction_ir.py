"""The LLVM IR text of reductions in rank order: of the operands of all ranks, element by element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Template
from typing import Final, NamedTuple

LANES: Final = 16
"""Elements that a reduction computes at once."""

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


class Number(NamedTuple):
    """How numbers of a dtype are stored, and what they are computed as: LLVM's types."""

    stored: str
    wide: str
    align: int
    signed: bool = True

    @property
    def is_float(self) -> bool:
        """Whether sums are of floating-point numbers."""
        return self.wide in ("float", "double")


NUMBERS: Final[Mapping[str, Number]] = {
    "fp32": Number("float", "float", 4),
    "fp64": Number("double", "double", 8),
    "fp16": Number("half", "float", 2),
    "bf16": Number("i16", "float", 2),
    "uint8": Number("i8", "i8", 1, signed=False),
    "int8": Number("i8", "i8", 1),
    "int16": Number("i16", "i16", 2),
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


def reductions_text() -> str:
    """Functions of result, address of the operands' addresses, number of operands, number of elements; one for each
    dtype and reduction.
    """
    return "".join(_reductions())


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
    return f"llvm.{'s' if number.signed else 'u'}{fold}.v{lanes}{number.wide}"


def _declaration(number: Number, fold: str, lanes: int) -> str:
    if fold not in ("minimum", "maximum", "min", "max"):
        return ""
    wide = f"<{lanes} x {number.wide}>"
    return f"declare {wide} @{_intrinsic(number, fold, lanes)}({wide}, {wide})"


def _splat(lanes: int, value: int) -> str:
    return "<" + ", ".join([f"i32 {value}"] * lanes) + ">"

"""Writing expressions as Tile IR: one scope per loop nest level, each value in the outermost scope that can hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.dialects import arith, memref
from xdsl.dialects import math as math_dialect
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import IntegerAttr, StringAttr, VectorType, f32, f64, i1, i64
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Operation, SSAValue

from tessera.dtypes import fp32, fp64, int64
from tessera.ir.tile import operations as tile
from tessera.scheduling.language.expression import APPROXIMATE, Value
from tessera.scheduling.lowering.attributes import element_type
from tessera.scheduling.lowering.builder import TileBuilder

_FLOAT: Mapping[str, Callable[..., Operation]] = {
    "add": arith.AddfOp,
    "sub": arith.SubfOp,
    "mul": arith.MulfOp,
    "div": arith.DivfOp,
    "neg": arith.NegfOp,
    "fma": math_dialect.FmaOp,
    "maximum": arith.MaximumfOp,
    "minimum": arith.MinimumfOp,
    "abs": math_dialect.AbsFOp,
    "expm1": math_dialect.ExpM1Op,
    "log": math_dialect.LogOp,
    "log1p": math_dialect.Log1pOp,
    "sin": math_dialect.SinOp,
    "cos": math_dialect.CosOp,
    "floor": math_dialect.FloorOp,
    "ceil": math_dialect.CeilOp,
    "round": math_dialect.RoundEvenOp,
    "sqrt": math_dialect.SqrtOp,
    "rsqrt": math_dialect.RsqrtOp,
}
_APPROXIMABLE: Mapping[str, Callable[..., Operation]] = {
    "exp": math_dialect.ExpOp,
    "tanh": math_dialect.TanhOp,
    "erf": math_dialect.ErfOp,
}
_INTEGER: Mapping[str, Callable[..., Operation]] = {
    "add": arith.AddiOp,
    "sub": arith.SubiOp,
    "mul": arith.MuliOp,
    "maximum": arith.MaxSIOp,
    "minimum": arith.MinSIOp,
    "abs": math_dialect.AbsIOp,
    "and": arith.AndIOp,
    "or": arith.OrIOp,
    "xor": arith.XOrIOp,
    "shift_right": arith.ShRSIOp,
}


@dataclass(frozen=True)
class ArgumentTile:
    """How expressions reach one kernel argument: its buffer (or scalar) and the iteration axis of each dimension."""

    value: SSAValue
    axes: tuple[str, ...]


def extent_of(builder: TileBuilder, arguments: Iterable[ArgumentTile], axis: str) -> SSAValue:
    """The run-time extent of an iteration axis, read from the first argument that has it. KeyError where none has."""
    for argument in arguments:
        if axis in argument.axes:
            return builder.extent(argument.value, argument.axes.index(axis))
    raise KeyError(axis)


@dataclass
class Scope:
    """One level of the loop nest.

    `axes` are the iteration axes whose position is known here or further out; `indices` gives the position of those
    that this level introduces and `in_bounds` whether a whole tile fits there. `depth` is the builder's block.
    """

    axes: frozenset[str]
    depth: int
    indices: dict[str, SSAValue] = field(default_factory=dict)
    in_bounds: dict[str, bool] = field(default_factory=dict)
    parent: Scope | None = None
    memo: dict[tuple[Value, tuple[int, ...]], SSAValue] = field(default_factory=dict)


class TileWriter:
    """Writes values at the tile shape given by `sizes`: axis name -> tile extent, in tile dimension order.

    A value that does not vary along an axis has extent 1 there and is broadcast on use.
    """

    def __init__(
        self,
        builder: TileBuilder,
        arguments: Mapping[int, ArgumentTile],
        sizes: Mapping[str, int],
        scope: Scope,
        extent: Callable[[], SSAValue] | None = None,
    ) -> None:
        self.builder = builder
        self.arguments = arguments
        self.sizes = dict(sizes)
        self.scope = scope
        self.extent = extent
        self.any_outside = False
        """Whether elements outside an operand may read anything, as nobody looks at what becomes of them."""
        self.hints: Mapping[int, Mapping[str, str]] = {}
        """Kernel argument -> `access` and `eviction` of its loads."""

    # -- scopes ---------------------------------------------------------------------------------------------------

    def enter(self, indices: Mapping[str, SSAValue], in_bounds: Mapping[str, bool]) -> None:
        """A scope for the block that the builder has just opened, up to the end of what is written."""
        axes = self.scope.axes | set(indices)
        self.scope = Scope(axes, len(self.builder.blocks) - 1, dict(indices), dict(in_bounds), self.scope)

    @contextmanager
    def inside(self, indices: Mapping[str, SSAValue], in_bounds: Mapping[str, bool]) -> Iterator[None]:
        """The same for a while: then the enclosing scope is the current one again."""
        outer = self.scope
        self.enter(indices, in_bounds)
        yield
        self.scope = outer

    def define(self, value: Value, ssa: SSAValue) -> None:
        """Says that `value` is `ssa` from here on, in the current scope."""
        self.scope.memo[(value, self.shape(value))] = ssa

    def shape(self, value: Value) -> tuple[int, ...]:
        """The tile shape at which a value is written."""
        return tuple(size if axis in value.axes else 1 for axis, size in self.sizes.items())

    def position(self, axis: str) -> SSAValue:
        """The current position along an axis."""
        scope: Scope | None = self.scope
        while scope is not None:
            if axis in scope.indices:
                return scope.indices[axis]
            scope = scope.parent
        raise KeyError(axis)

    def _bounded(self, axis: str) -> bool:
        scope: Scope | None = self.scope
        while scope is not None:
            if axis in scope.in_bounds:
                return scope.in_bounds[axis]
            scope = scope.parent
        return True

    def _home(self, value: Value) -> Scope:
        """The outermost scope that knows all axes of `value` and holds its arguments."""
        home = self.scope
        while home.parent is not None and value.axes <= home.parent.axes:
            home = home.parent
        return home

    # -- writing --------------------------------------------------------------------------------------------------

    def find(self, value: Value, shape: tuple[int, ...]) -> SSAValue | None:
        """What has been written for `value` at `shape` in this scope or further out."""
        scope: Scope | None = self.scope
        while scope is not None:
            ssa = scope.memo.get((value, shape))
            if ssa is not None:
                return ssa
            scope = scope.parent
        return None

    def write(self, value: Value, shape: tuple[int, ...] | None = None) -> SSAValue:
        """The SSA value of `value`, written if need be, broadcast to `shape` when one is asked for."""
        own = self.shape(value)
        wanted = own if shape is None else shape
        ssa = self.find(value, wanted)
        if ssa is not None:
            return ssa
        if value.operation == "constant":
            ssa = self.builder.splat(value.number, value.dtype, wanted, self._home(value).depth)
            self._home(value).memo[(value, wanted)] = ssa
            return ssa
        plain = self.find(value, own)
        if plain is None:
            plain = self._write_all(value)
        if wanted == own:
            return plain
        return self._place(value, tile.BroadcastOp.create, [plain], wanted, memo=True)

    def _write_all(self, value: Value) -> SSAValue:
        """Writes a value after those below it that are not written yet; a chain of operators may be thousands deep."""
        stack = [value]
        while True:
            last = stack[-1]
            own = self.shape(last)
            written = self.find(last, own)
            if written is None:
                missing = [argument for argument in last.arguments if self._is_missing(argument)]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                written = self._write(last, own)
                self._home(last).memo[(last, own)] = written
            stack.pop()
            if not stack:
                return written

    def _is_missing(self, value: Value) -> bool:
        # Constants are written in the shape that their use has.
        return value.operation != "constant" and self.find(value, self.shape(value)) is None

    def _place(
        self,
        value: Value,
        make: Callable[..., Operation],
        operands: Sequence[SSAValue],
        shape: tuple[int, ...],
        memo: bool = False,
    ) -> SSAValue:
        home = self._home(value)
        kind = VectorType(element_type(value.dtype), list(shape))
        ssa = self.builder.append(make(operands=list(operands), result_types=[kind]), home.depth)
        if memo:
            home.memo[(value, shape)] = ssa
        return ssa

    def _write(self, value: Value, shape: tuple[int, ...]) -> SSAValue:
        special = _SPECIAL.get(value.operation)
        if special is not None:
            return special(self, value, shape)
        operands = [self.write(argument, shape) for argument in value.arguments]
        if value.operation == "neg" and value.dtype.kind != "float":
            zero = self.builder.splat(0, value.dtype, shape, self._home(value).depth)
            return self.builder.append(arith.SubiOp(zero, operands[0]), self._home(value).depth)
        table = _FLOAT if value.dtype.kind == "float" else _INTEGER
        return self.builder.append(table[value.operation](*operands), self._home(value).depth)


def _load(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    argument = writer.arguments[value.argument]
    home = writer._home(value)
    dims = [argument.axes.index(axis) if axis in argument.axes else -1 for axis in writer.sizes]
    return writer.builder.load(
        argument.value,
        [writer.position(axis) for axis in argument.axes],
        dims,
        shape,
        [dim < 0 or writer._bounded(axis) for dim, axis in zip(dims, writer.sizes, strict=True)],
        any_outside=writer.any_outside,
        depth=home.depth,
        hints=writer.hints.get(value.argument, {}),
    )


def _scalar(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    return writer._place(value, tile.BroadcastOp.create, [writer.arguments[value.argument].value], shape)


def _compare(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    first, second = (writer.write(argument, shape) for argument in value.arguments)
    return _compared(writer, value.kind, first, second, shape, writer._home(value).depth)


def _compared(
    writer: TileWriter, predicate: str, first: SSAValue, second: SSAValue, shape: tuple[int, ...], depth: int
) -> SSAValue:
    operation = tile.CompareOp.create(
        operands=[first, second],
        result_types=[VectorType(i1, list(shape))],
        attributes={"predicate": StringAttr(predicate)},
    )
    return writer.builder.append(operation, depth)


def _select(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    operands = [writer.write(argument, shape) for argument in value.arguments]
    return writer._place(value, tile.SelectOp.create, operands, shape)


def _cast(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    return writer._place(value, tile.CastOp.create, [writer.write(value.arguments[0], shape)], shape)


def _not(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    depth = writer._home(value).depth
    ones = writer.builder.splat(1, value.dtype, shape, depth)
    return writer.builder.append(arith.XOrIOp(writer.write(value.arguments[0], shape), ones), depth)


def _function(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    flags = FastMathFlagsAttr([FastMathFlag.APPROX_FUNC]) if value.attributes == APPROXIMATE else None
    operand = writer.write(value.arguments[0], shape)
    return writer.builder.append(_APPROXIMABLE[value.operation](operand, flags), writer._home(value).depth)


def _position(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    (axis,) = value.axes
    tile_axis = list(writer.sizes).index(axis) if axis in writer.sizes else 0
    operation = tile.IotaOp.create(
        operands=[writer.position(axis)],
        result_types=[VectorType(element_type(int64), list(shape))],
        attributes={"axis": IntegerAttr(tile_axis, i64)},
    )
    return writer.builder.append(operation, writer._home(value).depth)


def _count(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    """The sum over axes of position times stride, where a stride is the product of the extents of the axes after."""
    builder, depth = writer.builder, writer._home(value).depth
    argument = writer.arguments[value.argument]
    kind = VectorType(element_type(int64), list(shape))

    def put(make: Callable[..., Operation], *operands: SSAValue) -> SSAValue:
        return builder.append(make(*operands), depth)

    def lanes(axis: int, first: SSAValue) -> SSAValue:
        attributes = {"axis": IntegerAttr(axis, i64)}
        return put(lambda at: tile.IotaOp.create(operands=[at], result_types=[kind], attributes=attributes), first)

    def spread(index: SSAValue) -> SSAValue:
        number = builder.append(arith.IndexCastOp(index, i64), depth)
        return put(lambda at: tile.BroadcastOp.create(operands=[at], result_types=[kind]), number)

    start, stride = builder.index(0), builder.index(1)
    walked: list[tuple[int, SSAValue]] = []
    for axis in reversed(value.attributes[1:]):
        assert isinstance(axis, str)
        start = put(arith.AddiOp, start, put(arith.MuliOp, writer.position(axis), stride))
        if axis in writer.sizes and writer.sizes[axis] > 1:
            walked.append((list(writer.sizes).index(axis), stride))
        stride = put(arith.MuliOp, stride, put(memref.DimOp, argument.value, builder.index(argument.axes.index(axis))))
    total = lanes(walked[0][0], start) if walked and walked[0][1] is builder.index(1) else spread(start)
    for place, step in walked:
        if step is not builder.index(1):
            total = put(arith.AddiOp, total, put(arith.MuliOp, lanes(place, builder.index(0)), spread(step)))
    return total


def _extent(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    assert writer.extent is not None and value.dtype in (fp32, fp64)
    depth = writer._home(value).depth
    integer = writer.builder.append(arith.IndexCastOp(writer.extent(), i64), depth)
    number = writer.builder.append(arith.SIToFPOp(integer, f32 if value.dtype is fp32 else f64), depth)
    return writer._place(value, tile.BroadcastOp.create, [number], shape)


def _power(writer: TileWriter, value: Value, shape: tuple[int, ...]) -> SSAValue:
    """Floats have an operation of their own; integers are squared and multiplied, bit by bit of the exponent.

    As in torch, a negative power is 0, but for the bases 1 and -1, whose powers the exponent's last bit decides.
    """
    depth = writer._home(value).depth
    base, exponent = (writer.write(argument, shape) for argument in value.arguments)

    def put(make: Callable[..., Operation], *operands: SSAValue) -> SSAValue:
        return writer.builder.append(make(*operands), depth)

    if value.dtype.kind == "float":
        return put(math_dialect.PowFOp, base, exponent)
    zero, one = (writer.builder.splat(number, value.dtype, shape, depth) for number in (0, 1))
    result, square, bits = one, base, exponent
    for _ in range(value.dtype.bits - 1):
        chosen = put(arith.SubiOp, zero, put(arith.AndIOp, bits, one))
        factor = put(arith.AddiOp, put(arith.AndIOp, put(arith.SubiOp, square, one), chosen), one)
        result = put(arith.MuliOp, result, factor)
        square, bits = put(arith.MuliOp, square, square), put(arith.ShRSIOp, bits, one)
    # All ones where the exponent is negative: `bits` now holds nothing but its sign.
    negative = _compared(writer, "lt", bits, zero, shape, depth)
    other = _compared(writer, "ne", put(math_dialect.AbsIOp, base), one, shape, depth)
    vanishes = put(arith.AndIOp, negative, other)
    return writer._place(value, tile.SelectOp.create, [vanishes, zero, result], shape)


_SPECIAL: Mapping[str, Callable[[TileWriter, Value, tuple[int, ...]], SSAValue]] = {
    "load": _load,
    "pow": _power,
    "scalar": _scalar,
    "compare": _compare,
    "select": _select,
    "cast": _cast,
    "not": _not,
    **dict.fromkeys(_APPROXIMABLE, _function),
    "position": _position,
    "count": _count,
    "extent": _extent,
}

"""From a kernel of a program and a layout pattern to the specification that the lowerings take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, SSAValue

from tessera.compiler.graph.program import Alignment, KernelItem, align_region
from tessera.dtypes import DType, accumulator, dtype_of
from tessera.ir.attributes import DTYPE_NAMES
from tessera.ir.graph import GraphOperation
from tessera.ops import OPERATORS
from tessera.ops.record import family_of
from tessera.rewrite.groups import PRODUCTS
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import (
    Argument,
    AttentionSpec,
    ContractionSpec,
    ConvolutionSpec,
    Geometry,
    MapReduceSpec,
    Output,
    Sibling,
    Spec,
    Window,
    WindowSpec,
    under_cast,
)


@dataclass(frozen=True)
class Pattern:
    """What a kernel is generated for, beside its operations: its arguments as they walk the merged axes.

    `outer` are the outer (or batch) axes; `reduced` and `lanes` are those of `MapReduceSpec`, `one_block` that of
    `ContractionSpec`, `window` that of `ConvolutionSpec`; `heads_as_queries` says that the queries of attention are
    heads that share keys; `turned` that a product is made as its transpose, whose operands are the other way round.
    """

    arguments: tuple[Argument, ...]
    outer: tuple[str, ...]
    reduced: str | None
    lanes: str
    one_block: bool
    heads_as_queries: bool = False
    window: Window | None = None
    turned: bool = False


def dtype_of_value(value: SSAValue) -> DType:
    """The dtype of a Graph IR value."""
    assert isinstance(value.type, TensorType)
    return dtype_of(DTYPE_NAMES[value.type.element_type])


class _RegionReader:
    """Runs the tile bodies of a kernel's operations against a recorder."""

    def __init__(self, item: KernelItem, pattern: Pattern, recorder: Recorder) -> None:
        self.item, self.pattern, self.recorder = item, pattern, recorder
        self.alignments = align_region(item.operation)
        self.arguments = {load: index for index, load in enumerate(item.loads)}
        self.values: dict[SSAValue, Value] = {}

    def operand(self, operation: GraphOperation, index: int) -> Value:
        """The value of an operand, in the dtype that arithmetic on it is done in."""
        value = operation.inputs[index]
        if isinstance(value, BlockArgument):
            alignment = self.alignments.operands[operation, index]
            raw = self._load(value, alignment)
        else:
            raw = self.values[value]
            if index < 2 and family_of(operation.operator) in PRODUCTS:
                # As it would be stored: machines multiply narrow elements faster than those of the accumulator.
                raw = self.recorder.cast(raw, dtype_of_value(value))
        return self.recorder.cast(raw, accumulator(raw.dtype))

    def _load(self, value: BlockArgument, alignment: Alignment) -> Value:
        position = self.arguments[value.index, alignment]
        argument = self.pattern.arguments[position]
        if argument.is_scalar:
            return self.recorder.scalar(position, argument.dtype)
        if argument.counted is not None:
            return self.recorder.count(position, argument.counted)
        return self.recorder.load(position, argument.dtype, argument.axes)

    def run(self, operation: GraphOperation) -> None:
        """Records one operation."""
        if operation.operator == "constant":
            dtype = accumulator(dtype_of_value(operation.result))
            number = operation.attribute("value")
            assert isinstance(number, bool | int | float)
            self.values[operation.result] = self.recorder.constant(number, dtype)
            return
        operator = OPERATORS[operation.operator]
        attributes = attributes_of(operation)
        operands = [self.operand(operation, index) for index in range(len(operation.inputs))]
        self.values[operation.result] = self._wrapped(operator.body(self.recorder, *operands, **attributes), operation)

    def _wrapped(self, value: Value, operation: GraphOperation) -> Value:
        """Integers as they would be stored: int8 is computed in int32 and wraps around after each operator, so that a
        result does not depend on what is fused. Floats keep the digits that storing them would round.
        """
        dtype = dtype_of_value(operation.result)
        return self.recorder.cast(value, dtype) if dtype.kind == "int" else value

    def outputs(self) -> tuple[Output, ...]:
        """The kernel's results, cast to the dtypes that they are stored in."""
        last = self.item.operation.body.block.last_op
        assert last is not None
        first = len(self.item.loads)
        return tuple(
            Output(first + index, self.recorder.cast(self.values[value], dtype_of_value(value)))
            for index, value in enumerate(last.operands)
        )


def attributes_of(operation: GraphOperation) -> dict[str, object]:
    """The attributes of an operation as its record takes them."""
    defaults = OPERATORS[operation.operator].attributes
    return {name: _attribute(name, operation.attribute(name, default)) for name, default in defaults.items()}


def _attribute(name: str, value: object) -> object:
    return dtype_of(value) if name == "dtype" and isinstance(value, str) else value


def map_reduce_spec(item: KernelItem, pattern: Pattern) -> MapReduceSpec:
    """The specification of a map or reduction kernel."""
    recorder = Recorder(pattern.reduced)
    reader = _RegionReader(item, pattern, recorder)
    for operation in _graph_operations(item):
        reader.run(operation)
    return MapReduceSpec(item.name, pattern.arguments, pattern.outer, pattern.reduced, pattern.lanes, reader.outputs())


def contraction_spec(item: KernelItem, pattern: Pattern) -> ContractionSpec:
    """The specification of a matrix product with its prologues and epilogues."""
    recorder = _ContractionRecorder(pattern.outer)
    reader = _RegionReader(item, pattern, recorder)
    for operation in _graph_operations(item):
        reader.run(operation)
    math = item.anchor.attribute("math") if item.anchor is not None else None
    assert math is None or isinstance(math, str)
    assert recorder.a is not None
    first, *others = recorder.products
    a, b = (first.b, recorder.a) if pattern.turned else (recorder.a, first.b)
    return ContractionSpec(
        item.name,
        pattern.arguments,
        pattern.outer,
        a,
        b,
        first.accumulator,
        reader.outputs(),
        pattern.one_block,
        math,
        others[0] if others else None,
    )


def attention_spec(item: KernelItem, pattern: Pattern) -> AttentionSpec:
    """The specification of attention."""
    recorder = _AttentionRecorder(pattern.outer)
    reader = _RegionReader(item, pattern, recorder)
    for operation in _graph_operations(item):
        reader.run(operation)
    assert recorder.attended is not None
    q, k, v, scale, mask, causal, accumulator = recorder.attended
    causal = causal and not pattern.heads_as_queries  # the only query of a head is the last one, which sees all keys
    return AttentionSpec(
        item.name, pattern.arguments, pattern.outer, q, k, v, scale, mask, causal, accumulator, reader.outputs()
    )


def convolution_spec(item: KernelItem, pattern: Pattern) -> ConvolutionSpec:
    """The specification of a convolution with its prologues and epilogues."""
    recorder = _ConvolutionRecorder(pattern.outer)
    reader = _RegionReader(item, pattern, recorder)
    for operation in _graph_operations(item):
        reader.run(operation)
    assert recorder.convolved is not None and pattern.window is not None
    image, weights, accumulator = recorder.convolved
    return ConvolutionSpec(
        item.name,
        pattern.arguments,
        pattern.outer,
        image,
        under_cast(weights).argument,
        pattern.window,
        "g" if "g" in pattern.outer else None,
        accumulator,
        reader.outputs(),
    )


def window_spec(item: KernelItem, pattern: Pattern) -> WindowSpec:
    """The specification of a reduction over a sliding window."""
    recorder = _WindowRecorder(None)
    reader = _RegionReader(item, pattern, recorder)
    for operation in _graph_operations(item):
        reader.run(operation)
    assert item.window is not None
    kernel, stride, dilation = (_pair(item.window.integers(name)) for name in ("kernel", "stride", "dilation"))
    geometry = Geometry(kernel, stride, _pair(item.window.integers("padding")[::2]), dilation)
    return WindowSpec(item.name, pattern.arguments, pattern.outer, pattern.lanes, geometry, reader.outputs())


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    first, second = values
    return first, second


SPECS: Mapping[str, Callable[[KernelItem, Pattern], Spec]] = {
    "attention": attention_spec,
    "column": map_reduce_spec,
    "contraction": contraction_spec,
    "convolution": convolution_spec,
    "row": map_reduce_spec,
    "window": window_spec,
}
"""Family of a kernel -> what makes its specification."""


class _WindowRecorder(Recorder):
    """A recorder whose reductions go over the window, and whose image varies with it."""

    def load(self, argument: int, dtype: DType, axes: Iterable[str]) -> Value:
        """An element of an argument: one that walks h and w is read through the window."""
        walked = set(axes)
        if walked >= {"h", "w"}:
            walked = walked - {"h", "w"} | {"y", "x", "ky", "kx"}
        return self.make("load", (), (argument,), dtype, walked)

    def reduce(self, kind: str, a: Value) -> Value:
        """Reduces `a` over the window."""
        return self.make("reduce", (a,), (kind,), a.dtype, a.axes - {"ky", "kx"}, a.stage + 1)


class _AttentionRecorder(Recorder):
    """A recorder that notes the operands of the one attention."""

    def __init__(self, batch: Sequence[str]) -> None:
        super().__init__(None)
        self.batch = batch
        self.attended: tuple[Value, Value, Value, Value, Value | None, bool, Value] | None = None

    def attend(self, q: Value, k: Value, v: Value, scale: Value, mask: Value | None, causal: bool) -> Value:
        """The tile of weighted means."""
        result = self.make("accumulator", (), (), q.dtype, (*self.batch, "q", "v"))
        self.attended = q, k, v, scale, mask, causal, result
        return result


class _ConvolutionRecorder(Recorder):
    """A recorder that notes the operands of the one convolution."""

    def __init__(self, batch: Sequence[str]) -> None:
        super().__init__(None)
        self.batch = batch
        self.convolved: tuple[Value, Value, Value] | None = None

    def convolve(self, image: Value, weights: Value) -> Value:
        """The tile of sums. They are formed in the image's accumulator, whatever the weights are packed in."""
        result = self.make("accumulator", (), (), image.dtype, (*self.batch, "y", "x", "n"))
        self.convolved = image, weights, result
        return result


class _ContractionRecorder(Recorder):
    """A recorder that notes the operands of the matrix product, or of two over one first operand. Reductions are along
    k: those before the product.
    """

    def __init__(self, batch: Sequence[str]) -> None:
        super().__init__("k")
        self.batch = batch
        self.a: Value | None = None
        self.products: list[Sibling] = []

    def contract(self, a: Value, b: Value) -> Value:
        """The register tile of a product."""
        assert self.a in (None, a), "products of a kernel share their first operand"
        self.a = a
        number = (len(self.products),) if self.products else ()
        sums = self.make("accumulator", (), number, a.dtype, (*self.batch, "m", "n"))
        self.products.append(Sibling(b, sums))
        return sums


def _graph_operations(item: KernelItem) -> list[GraphOperation]:
    """The region's operations; what feeds the matrix product comes first, whatever the order of fusion was."""
    operations = [op for op in item.operation.body.block.ops if isinstance(op, GraphOperation)]
    ready: set[SSAValue] = set()
    ordered: list[GraphOperation] = []
    while operations:
        now = [op for op in operations if all(isinstance(v, BlockArgument) or v in ready for v in op.inputs)]
        ordered += now
        ready.update(op.result for op in now)
        operations = [op for op in operations if op not in now]
    return ordered

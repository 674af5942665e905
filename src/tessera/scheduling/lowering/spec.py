"""What a lowering is given: the arguments of a kernel and the expressions it computes, free of any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, Region

from tessera.dtypes import DType, holds
from tessera.ir.tile import operations as tile
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.attributes import buffer_type, element_type, integers_attribute
from tessera.scheduling.lowering.writer import ArgumentTile

QUAD: Final = 4
"""Steps of K that lie side by side where bytes are multiplied."""


@dataclass(frozen=True)
class Panels:
    """How a packed operand lies in memory: [..., N / width, K / group, width, group], without the last where it is 1.

    A panel holds `width` neighbouring columns for all of K; `group` steps of K lie side by side, as instructions that
    multiply several at once want them. The groups of a panel are a multiple of `rows`, as many as a matrix unit takes
    at once. What K and N lack of whole groups and panels is zero.
    """

    width: int
    group: int = 1
    rows: int = 1

    def groups(self, k: int) -> int:
        """The groups of a panel of `k` rows."""
        return -(-k // (self.group * self.rows)) * self.rows


@dataclass(frozen=True)
class Argument:
    """One kernel argument: a buffer that walks `axes` (static stride 1 or 0 where promised), or a scalar (no axes).

    With `counted` nothing is read from it: its elements are their own row-major numbers over those axes. With `panels`
    the buffer holds a packed copy of a constant, whose axes are batch axes, n and k.
    """

    dtype: DType
    axes: tuple[str, ...] = ()
    strides: tuple[int | None, ...] = ()
    is_scalar: bool = False
    panels: Panels | None = None
    counted: tuple[str, ...] | None = None

    @property
    def type(self) -> Attribute:
        """The MLIR type of the argument."""
        if self.panels is not None:
            width, group = self.panels.width, self.panels.group
            inner = [None, width * group, *([group, 1] if group > 1 else [1])]
            return buffer_type(self.dtype, [*[None] * (len(self.axes) - 2), *inner])
        return element_type(self.dtype) if self.is_scalar else buffer_type(self.dtype, self.strides)

    def stride(self, axis: str) -> int | None:
        """The static stride along `axis`: 1, or None when it is known only at run time; 0 where it does not walk it."""
        return self.strides[self.axes.index(axis)] if axis in self.axes else 0


@dataclass(frozen=True)
class Output:
    """One result: the kernel argument that it is written to, and the expression."""

    argument: int
    value: Value


@dataclass(frozen=True)
class MapReduceSpec:
    """A kernel of maps and reductions: outer axes, the reduced axis (None for a pure map) and the lane axis.

    Row kernels reduce along the lane axis itself; column kernels reduce along an axis that lies outside the lanes.
    `counted` is the axis whose length `extent` means, where that is not the reduced one: of joined partial results.
    """

    name: str
    arguments: tuple[Argument, ...]
    outer: tuple[str, ...]
    reduced: str | None
    lanes: str
    outputs: tuple[Output, ...]
    counted: str | None = None


@dataclass(frozen=True)
class RowsAndColumnsSpec:
    """A kernel that reduces rows, along `lanes`, and columns, along `rows`, of one matrix: `outputs` are expressions
    over both kinds of reductions, those over reductions of columns do not vary along `rows`.

    With `part` each column is reduced in parts, of neighbouring rows: such an output is a reduction itself, and its
    argument walks that axis.
    """

    name: str
    arguments: tuple[Argument, ...]
    rows: str
    lanes: str
    outputs: tuple[Output, ...]
    part: str | None = None


@dataclass(frozen=True)
class Sibling:
    """One of several products over the same first operand and axes: its second operand, and its sums."""

    b: Value
    accumulator: Value


@dataclass(frozen=True)
class ContractionSpec:
    """A matrix product with prologues and epilogues: `outputs` are expressions over `accumulator`.

    `a` varies along batch axes, m and k; `b` along batch axes, k and n. `one_block` promises that K fits one K block.
    `math="tf32"` permits products of fp32 whose operands are rounded to 10 mantissa bits, where a machine has such.
    With a `sibling` the kernel forms a second product of `a`, whose sums `outputs` may use beside the first one's.
    """

    name: str
    arguments: tuple[Argument, ...]
    batch: tuple[str, ...]
    a: Value
    b: Value
    accumulator: Value
    outputs: tuple[Output, ...]
    one_block: bool
    math: str | None = None
    sibling: Sibling | None = None

    @property
    def products(self) -> tuple[Sibling, ...]:
        """Second operand and sums of every product, the first one's first."""
        first = Sibling(self.b, self.accumulator)
        return (first,) if self.sibling is None else (first, self.sibling)


@dataclass(frozen=True)
class PackingSpec:
    """The second operand of a product written into panels: the one output's argument has them; its value varies along
    `batch`, k and n.
    """

    name: str
    arguments: tuple[Argument, ...]
    batch: tuple[str, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Scoring:
    """What becomes of a score: `changed`, times log2(e), of the scaled `score`; both vary along `batch`, q and k."""

    score: Value
    changed: Value


@dataclass(frozen=True)
class Sums:
    """What a kernel sums up beside its `accumulator`."""

    accumulator: Value


@dataclass(frozen=True)
class PulledScore:
    """What the cotangent of a score is made of: `derived`, of that of what it became, which is `changed`, and of the
    score.
    """

    changed: Value
    derived: Value


@dataclass(frozen=True)
class SumsBeside:
    """Sums of the cotangent of an operand beside the scores, `derived` as that of a score is, over queries and keys but
    for the axes `along` which they are.
    """

    accumulator: Value
    derived: Value
    along: str


@dataclass(frozen=True)
class AttentionSpec:
    """Attention: `outputs` are expressions over `accumulator`, which varies along `batch`, q and v.

    The axes are q (queries), k (keys), d (elements of a query and of a key) and v (elements of a value); `batch` holds
    the rest, where heads that share keys and values are an axis that those do not walk. `scale` varies along none.
    `scoring` says what a scaled score becomes before it is masked;
    `mask` is of booleans (true: may be attended to), or added to the scores. With `causal` query i sees the keys
    j <= i + keys - queries. Where there is an argument of `logarithms`, the first batch axis counts parts of the keys,
    and that argument takes the logarithm of the sum of a part's exponentials. With `saved` outputs may be that of all
    keys, which varies along `batch` and q.
    """

    name: str
    arguments: tuple[Argument, ...]
    batch: tuple[str, ...]
    q: Value
    k: Value
    v: Value
    scale: Value
    mask: Value | None
    causal: bool
    accumulator: Value
    outputs: tuple[Output, ...]
    logarithms: int | None = None
    scoring: Scoring | None = None
    saved: Sums | None = None


@dataclass(frozen=True)
class AttentionGradientSpec:
    """The gradient of attention: `outputs` are the `accumulator`, which is of queries and varies along `batch`, q and
    d, the sums of `keys` (along k and d) or of `values` (k and v), over `batch` axes that keys walk, or those `beside`.

    Axes, `mask` of booleans, and `scoring` are those of `AttentionSpec`; `g` (along q and v) is the cotangent of the
    means, `logarithms` and `mean` (along q) are what the softmax left of each query: log(sum of exponentials), and
    <g, means>.
    """

    name: str
    arguments: tuple[Argument, ...]
    batch: tuple[str, ...]
    q: Value
    k: Value
    v: Value
    g: Value
    logarithms: Value
    mean: Value
    scale: Value
    mask: Value | None
    causal: bool
    accumulator: Value
    outputs: tuple[Output, ...]
    keys: Sums | None = None
    values: Sums | None = None
    scoring: Scoring | None = None
    pulled: PulledScore | None = None
    beside: tuple[SumsBeside, ...] | None = None


@dataclass(frozen=True)
class Window:
    """How a convolution's window walks an image, rows first: the step between neighbouring results, the rows and
    columns of zeros before the image, and the step between the window's own elements. `only_after`: zeros follow the
    image's rows or columns, however many, though none go before.
    """

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    only_after: bool = field(default=False, repr=False)

    @property
    def is_padded(self) -> bool:
        """Whether windows may leave the image."""
        return self.padding != (0, 0) or self.only_after


@dataclass(frozen=True)
class ConvolutionSpec:
    """A convolution: `outputs` are expressions over `accumulator`, which varies along `batch`, y, x and n (channels).

    `image` varies along `batch`, h (its rows), x, w (its columns) and c (channels of a group): column `w + stride x`,
    so that a tile of neighbouring results walks x and the window's columns are w. `weights` is the number of the
    argument that holds them as `convolution_weights` packs them, walking row and lane (pair and half, too, where the
    machine multiplies pairs). `groups` is the batch axis of the groups, None where there is one.
    """

    name: str
    arguments: tuple[Argument, ...]
    batch: tuple[str, ...]
    image: Value
    weights: int
    window: Window
    groups: str | None
    accumulator: Value
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Geometry:
    """A window of `kernel` rows and columns over an image: output (y, x) sees the image's elements
    (y * stride - padding + tap * dilation), along either dimension; `padding` is that above and to the left.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def taps(self) -> tuple[tuple[int, int], ...]:
        """The window's places, row after row, which is the order of sums."""
        return tuple((row, column) for row in range(self.kernel[0]) for column in range(self.kernel[1]))

    def reach(self, dimension: int) -> int:
        """The distance of the last tap from the first, in elements of the image."""
        return (self.kernel[dimension] - 1) * self.dilation[dimension]


@dataclass(frozen=True)
class WindowSpec:
    """Reductions over a sliding window: `outputs` are expressions over reductions, of which one operand is read
    through the window. It walks h and w, the rows and columns of the image, and varies along y, x (of the result), ky
    and kx (of the window); operands that walk ky and kx have an element per tap.

    `lanes` is the axis along vectors: x, or c where channels lie side by side; then y is the last of the `outer` axes.
    """

    name: str
    arguments: tuple[Argument, ...]
    outer: tuple[str, ...]
    lanes: str
    geometry: Geometry
    outputs: tuple[Output, ...]

    @property
    def rows(self) -> str:
        """The axis along which a register tile has several rows."""
        return "y" if self.lanes == "x" else "x"


Spec: TypeAlias = (
    ContractionSpec
    | MapReduceSpec
    | RowsAndColumnsSpec
    | AttentionSpec
    | AttentionGradientSpec
    | ConvolutionSpec
    | WindowSpec
    | PackingSpec
)
"""What a lowering is given, of any family."""


def kernel_module(
    name: str, arguments: Sequence[Argument], outputs: Sequence[Output]
) -> tuple[ModuleOp, Block, dict[int, ArgumentTile]]:
    """An empty kernel: the module, the block to fill and how expressions reach its arguments."""
    block = Block(arg_types=[argument.type for argument in arguments])
    kernel = tile.KernelOp.create(
        attributes={
            "sym_name": StringAttr(name),
            "outputs": integers_attribute([output.argument for output in outputs]),
        },
        regions=[Region(block)],
    )
    tiles = {index: ArgumentTile(block.args[index], argument.axes) for index, argument in enumerate(arguments)}
    return ModuleOp([kernel]), block, tiles


def loaded_arguments(value: Value) -> list[int]:
    """Indices of the kernel arguments that an expression loads."""
    found: list[int] = []
    stack = [value]
    while stack:
        current = stack.pop()
        if current.operation == "load":
            found.append(current.argument)
        stack.extend(current.arguments)
    return found


def under_cast(value: Value) -> Value:
    """What lies under a cast that widens."""
    return value.arguments[0] if value.operation == "cast" else value


def cast_dtypes(value: Value) -> list[DType]:
    """The dtypes that a value is cast to before anything else is done with it, the last cast first."""
    found = []
    while value.operation == "cast":
        found.append(value.dtype)
        value = value.arguments[0]
    return found


def exact_load(value: Value) -> Value | None:
    """The load under casts that change no value of its dtype; None where there is something else."""
    casts = cast_dtypes(value)
    for _ in casts:
        value = value.arguments[0]
    is_exact = value.operation == "load" and all(holds(dtype, value.dtype) for dtype in casts)
    return value if is_exact else None


def unit_axis(value: Value, arguments: Sequence[Argument], default: str) -> str:
    """The axis along which the largest argument below `value` is contiguous; `default` when there is none."""
    indices = loaded_arguments(value)
    widest = max(indices, key=lambda index: len(arguments[index].axes), default=None)
    if widest is None:
        return default
    argument = arguments[widest]
    return next((axis for axis in argument.axes if argument.stride(axis) == 1), default)

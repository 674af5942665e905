"""One application of each operator to drawn operands, made from its record alone: new records are tested at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from hypothesis import strategies as st

from tessera import op
from tessera.doors.tensors.shapes import PAD_MODES
from tessera.dtypes import COMPLEX, SUPPORTED, DType, bool_, int64
from tessera.errors import DTypeError
from tessera.lazy.leaves.conversion import as_node
from tessera.ops import OPERATORS, Operator
from tessera.ops.algebra import call
from tessera.ops.attention.trained import LOGARITHMS, SCORED_LOGARITHMS
from tests.property.attention_cases import paged_attention, trained_attention
from tests.property.library_cases import INDEXED, LIBRARY_CASES, PROBES, Case, by_application, is_applied_to
from tests.property.operands import EXTENTS, LAYOUTS, Shape, Values, filled, laid_out, shapes

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]


def operand_dtypes(record: Operator) -> list[DType]:
    """The dtypes that an operator takes, as it says itself when it is called."""
    if not record.arity[0]:
        return [int64]
    accepted = []
    for dtype in sorted(SUPPORTED - COMPLEX, key=lambda dtype: dtype.name):
        if record.family in (
            "attention",
            "attention_gradient",
            "paged_attention",
            "convolution",
            "window",
        ):  # their operands are not alike
            accepted += [dtype] if dtype.kind == "float" else []
            continue
        if record.family == "library" and record.name not in LIBRARY_CASES:
            accepted += [dtype] if is_applied_to(record, dtype) else []
            continue
        operand = as_node(torch.ones((2, 2), dtype=dtype.torch))
        condition = [as_node(torch.ones((2, 2), dtype=torch.bool))] if record.name == "where" else []
        try:
            operands = [*condition, *[operand] * (record.arity[0] - len(condition))]
            if record.name == "philox":
                operands[1] = as_node(torch.ones((), dtype=dtype.torch))
            if record.name in INDEXED:
                operands[1] = as_node(torch.ones((2,) if record.name == "put" else (2, 2), dtype=torch.int64))
            call(record.name, *operands, **_probe(record))
        except DTypeError:
            continue
        accepted.append(dtype)
    return accepted


def _probe(record: Operator) -> dict[str, Any]:
    given: dict[str, dict[str, Any]] = {
        "reshape": {"shape": (4,)},
        "broadcast_to": {"shape": (2, 2)},
        "transpose": {"permutation": (1, 0)},
        "slice": {"starts": (0, 0), "sizes": (1, 1), "steps": (1, 1)},
        "clamp": {"minimum": 0},
        "pad": {"before": (1, 0), "after": (0, 1), "mode": "reflect"},
        **PROBES,
    }
    return given.get(record.name, {"axes": (0,)} if record.family == "reduction" else {})


def draw_case(draw: Draw, record: Operator, dtype: DType) -> Case:
    """An application of an operator to operands of a dtype."""
    return _FAMILIES[record.family](draw, record, dtype)


def _operand(draw: Draw, shape: Shape, dtype: DType, values: Values) -> torch.Tensor:
    tensor = filled(shape, dtype, values, draw(st.integers(0, 1 << 16)))
    return laid_out(tensor, draw(st.sampled_from(LAYOUTS)))


# -- elementwise ------------------------------------------------------------------------------------------------------


def _elementwise(draw: Draw, record: Operator, dtype: DType) -> Case:
    shape = draw(shapes(draw(st.sampled_from((0, 1, 2, 2, 3))), long=True))
    values: Values = draw(st.sampled_from(("ordinary", "unbounded")))
    if record.name in ("sin", "cos", "tan"):
        values = "special"  # of arguments beyond 2^40 the result has no digits
    count = record.arity[0]
    attributes: dict[str, Any] = {}
    if record.name == "cast":
        attributes["dtype"] = draw(st.sampled_from(sorted(SUPPORTED - COMPLEX, key=lambda dtype: dtype.name)))
        if dtype.kind == "float" and attributes["dtype"].kind == "int":
            values = "ordinary"  # NaN and numbers out of range have no integer
    if record.name == "clamp":
        attributes = draw(st.sampled_from(({"minimum": -1}, {"maximum": 2}, {"minimum": -3, "maximum": 1})))
    if record.name == "gelu":
        attributes["approximate"] = draw(st.sampled_from(("none", "tanh")))
    operands = [_operand(draw, _broadcasting(draw, shape), dtype, values) for _ in range(count)]
    if record.name == "philox":
        operands = [_operand(draw, shape, dtype, values), _operand(draw, (), dtype, values)]
    if record.name == "where":
        operands[0] = _operand(draw, _broadcasting(draw, shape), bool_, values)
    if record.name == "pow":
        operands[1] = _exponent(operands[1], dtype)
    tensor = call(record.name, *[as_node(operand) for operand in operands], **attributes)
    return Case(tensor, _terms(record, operands))


def _broadcasting(draw: Draw, shape: Shape) -> Shape:
    """The shape itself, mostly; else one that broadcasts to it."""
    kind = draw(st.sampled_from(("same", "same", "same", "row", "column", "number")))
    if kind == "row":
        return shape[-1:]
    if kind == "column":
        return (*shape[:-1], 1) if shape else ()
    return () if kind == "number" else shape


def _exponent(tensor: torch.Tensor, dtype: DType) -> torch.Tensor:
    # A negative power of an integer is no integer; large ones are not what this is about.
    return tensor.remainder(6) if dtype.kind == "int" else tensor


def _terms(record: Operator, operands: list[torch.Tensor]) -> torch.Tensor | float:
    """gelu(x) of a negative x is x times what is left of 1 - erf: exact to a unit of x."""
    if record.name != "gelu":
        return 0.0
    return torch.nan_to_num(operands[0].double().abs(), posinf=0.0)


# -- reductions and rows ----------------------------------------------------------------------------------------------


def _reduction(draw: Draw, record: Operator, dtype: DType) -> Case:
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    shape = draw(shapes(rank, long=True))
    if record.name == "argmax":
        axes = draw(st.sampled_from([(axis,) for axis in range(rank)] + [tuple(range(rank))]))
    else:
        axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    if record.name in ("max", "min", "argmax"):
        shape = tuple(max(extent, 1) for extent in shape)
    values: Values = draw(st.sampled_from(("ordinary", "special")))
    x = _operand(draw, shape, dtype, values)
    if record.name == "prod" and dtype.kind == "float":
        x = x.double().clamp(-1.5, 1.5).to(x.dtype)  # the order of factors decides where a product overflows
    tensor = call(record.name, as_node(x), axes=axes, keepdims=draw(st.booleans()))
    keepdims = tensor.ndim == rank
    return Case(tensor, _sum_of_magnitudes(record, x, axes, keepdims))


def _sum_of_magnitudes(record: Operator, x: torch.Tensor, axes: Shape, keepdims: bool) -> torch.Tensor | float:
    if record.name == "logsumexp":
        return 4.0  # the exponent of what is summed, and its logarithm
    if record.name not in ("sum", "mean", "prod") or not x.is_floating_point():
        return 0.0
    magnitude = torch.nan_to_num(x.double().abs(), nan=0.0, posinf=0.0)
    if record.name == "prod":
        # Each factor may round once.
        count = math.prod(x.shape[axis] for axis in axes)
        return count * OPERATORS["prod"].reference(magnitude, axes=axes, keepdims=keepdims)
    return OPERATORS[record.name].reference(magnitude, axes=axes, keepdims=keepdims)


def _row(draw: Draw, record: Operator, dtype: DType) -> Case:
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    shape = draw(shapes(rank, long=True))
    x = _operand(draw, shape, dtype, draw(st.sampled_from(("ordinary", "special"))))
    if record.name.endswith("softmax"):
        tensor = call(record.name, as_node(x), axis=draw(st.integers(0, rank - 1)))
        return Case(tensor, 4.0)
    count = draw(st.integers(0, record.arity[1] - 1))
    parameters = [_operand(draw, shape[-1:], dtype, "ordinary") for _ in range(count)]
    tensor = call(record.name, as_node(x), *[as_node(parameter) for parameter in parameters], eps=1e-5)
    # Normal values are of size 1; subtracting the mean and multiplying by the parameters each round once more.
    return Case(tensor, 32.0)


# -- contractions -----------------------------------------------------------------------------------------------------


def _contraction(draw: Draw, record: Operator, dtype: DType) -> Case:
    m, n, k = (draw(st.sampled_from(EXTENTS)) for _ in range(3))
    batch: Shape = draw(st.sampled_from(((), (), (), (3,), (2, 2))))
    a_batch, b_batch = draw(st.sampled_from(((batch, batch), (batch, ()), ((), batch))))
    values: Values = draw(st.sampled_from(("ordinary", "ordinary", "special")))
    a = _operand(draw, (*a_batch, m, k), dtype, values)
    b = _operand(draw, (*b_batch, k, n), dtype, values)
    operands, attributes = [a, b], {}
    if record.name == "gemm":
        attributes = {"alpha": 0.5, "beta": -2.0} if dtype.kind == "float" else {}
        if draw(st.booleans()):
            shape = draw(st.sampled_from(((m, n), (n,), (m, 1))))
            operands.append(_operand(draw, shape, dtype, "ordinary"))
    tensor = call(record.name, *[as_node(operand) for operand in operands], **attributes)
    if dtype.kind != "float":
        return Case(tensor)
    magnitudes = [torch.nan_to_num(operand.double().abs(), nan=0.0, posinf=0.0) for operand in operands]
    added = [2 * magnitude for magnitude in magnitudes[2:]]
    return Case(tensor, sum(added, start=magnitudes[0] @ magnitudes[1]))


# -- attention --------------------------------------------------------------------------------------------------------


def _attention(draw: Draw, record: Operator, dtype: DType) -> Case:
    """Grouped heads, unequal lengths, masks that broadcast, every layout; what is not finite is seen by all."""
    if record.name in (LOGARITHMS, SCORED_LOGARITHMS):
        return trained_attention(draw, record, dtype)
    length = st.sampled_from((1, 2, 5, 16, 31, 33, 65, 129))
    queries, keys = draw(length), draw(st.sampled_from((0, 1, 3, 17, 64, 65, 150, 300)))
    head, value_head = (draw(st.sampled_from((1, 3, 16, 24, 33, 64))) for _ in range(2))
    lead: Shape = draw(st.sampled_from(((), (1,), (2,), (2, 3), (1, 2))))
    group = draw(st.sampled_from((1, 1, 2, 3))) if lead else 1
    shared, heads = lead, (*lead[:-1], lead[-1] * group) if lead else ()
    causal = draw(st.booleans())
    masks: dict[str, Shape] = {
        "full": (*heads, queries, keys),
        "keys": (keys,),
        "plane": (queries, keys),
        "queries": (queries, 1),
    }
    kind = draw(st.sampled_from(("none", "none", *masks)))
    values: Values = draw(st.sampled_from(("ordinary", "ordinary", "special")))
    if causal or kind != "none":
        values = "ordinary"
    q = _operand(draw, (*heads, queries, head), dtype, values)
    k = _operand(draw, (*shared, keys, head), dtype, values)
    v = _operand(draw, (*shared, keys, value_head), dtype, values)
    mask = None
    if kind != "none":
        mask = _operand(draw, masks[kind], draw(st.sampled_from((bool_, dtype))), "ordinary")
    scale = draw(st.sampled_from((None, 0.1, 0.0, 1.0, -0.3)))
    tensor = op.flash_attention(q, k, v, causal=causal, scale=scale, mask=mask)
    # A score is a sum of `head` products, and its error is one of the weight's exponent.
    size = torch.nan_to_num(v.double().abs(), nan=0.0, posinf=0.0)
    largest = float(size.max()) if size.numel() else 0.0
    return Case(tensor, largest * (4 + head))


# -- libraries --------------------------------------------------------------------------------------------------------


def _library(draw: Draw, record: Operator, dtype: DType) -> Case:
    return LIBRARY_CASES.get(record.name, by_application)(draw, record, dtype)


# -- convolution ------------------------------------------------------------------------------------------------------


def _convolution(draw: Draw, record: Operator, dtype: DType) -> Case:
    """Every stride, padding, dilation and layout; images smaller than the window, and padding larger than it."""
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    depth, outputs = draw(st.sampled_from((1, 2, 3, 5, 16, 40, 65))), draw(st.sampled_from((1, 3, 16, 17, 33, 40)))
    window = draw(st.sampled_from((1, 1, 2, 3, 5))), draw(st.sampled_from((1, 1, 2, 3, 7)))
    stride, dilation = (tuple(draw(st.integers(1, 3)) for _ in range(2)) for _ in range(2))
    padding = tuple(draw(st.sampled_from((0, 0, 1, 2, 6))) for _ in range(2))
    sides = []
    for size, step, pad in zip(window, dilation, padding, strict=True):
        least = max(1, step * (size - 1) + 1 - 2 * pad)
        sides.append(draw(st.integers(least, least + 20)))
    images = draw(st.sampled_from((0, 1, 1, 2, 3)))
    # A weight that is not finite need not show where it meets padding.
    values: Values = draw(st.sampled_from(("ordinary", "special")))
    shape = (images, groups * depth, *sides)
    layout = draw(st.sampled_from(("NCHW", "NHWC", "NHWC")))
    image = _operand(draw, shape if layout == "NCHW" else (images, *sides, groups * depth), dtype, values)
    weights = _operand(draw, (groups * outputs, depth, *window), dtype, "ordinary")
    kept = op.constant(weights) if draw(st.booleans()) else weights
    result = op.conv2d(image, kept, stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout)
    largest = [torch.nan_to_num(x.double().abs(), nan=0.0, posinf=0.0) for x in (image, weights)]
    size = math.prod(float(x.max()) if x.numel() else 0.0 for x in largest)
    return Case(result, size * depth * math.prod(window))


# -- windows ----------------------------------------------------------------------------------------------------------


def _window(draw: Draw, record: Operator, dtype: DType) -> Case:
    """Windows of any size, stride and dilation, in either layout; images that no vector divides, and empty ones."""
    side = st.sampled_from((1, 2, 3, 5, 8, 17, 28, 33))
    kernel, stride, dilation = ((draw(st.integers(1, most)), draw(st.integers(1, most))) for most in (4, 3, 2))
    padding = tuple(draw(st.integers(0, size // 2)) for size in kernel for _ in (0, 1))
    layout, n, c = (
        draw(st.sampled_from(("NCHW", "NHWC"))),
        draw(st.integers(0, 2)),
        draw(st.sampled_from((1, 3, 17, 40))),
    )
    reach = [(size - 1) * gap + 1 for size, gap in zip(kernel, dilation, strict=True)]
    h, w = (max(draw(side), least) for least in reach)
    multiplier = draw(st.sampled_from((1, 1, 2))) if record.arity[1] > 1 else 1
    values: Values = draw(st.sampled_from(("ordinary", "special")))
    x = _operand(draw, (n, c, h, w) if layout == "NCHW" else (n, h, w, c), dtype, values)
    taps = [_operand(draw, (c * multiplier, *kernel), dtype, "ordinary") for _ in range(record.arity[1] - 1)]
    attributes = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "layout": layout}
    attributes |= {"multiplier": multiplier} if taps else {}
    tensor = call(record.name, as_node(x), *map(as_node, taps), **attributes)
    sizes = [torch.nan_to_num(each.double().abs(), nan=0.0, posinf=0.0) for each in (x, *taps)]
    return Case(tensor, 0.0 if record.name == "max_pool2d" else record.reference(*sizes, **attributes))


# -- layout -----------------------------------------------------------------------------------------------------------


def _layout(draw: Draw, record: Operator, dtype: DType) -> Case:
    rank = draw(st.sampled_from((1, 2, 3)))
    shape = draw(shapes(rank))
    if record.name == "iota":
        return Case(call("iota", shape=shape))
    values: Values = "unbounded"
    x = as_node(_operand(draw, shape, dtype, values))
    if record.name == "concat":
        axis = draw(st.integers(0, rank - 1))
        extents = draw(st.lists(st.sampled_from(EXTENTS), max_size=3))
        parts = [(*shape[:axis], extent, *shape[axis + 1 :]) for extent in extents]
        return Case(call("concat", x, *[as_node(_operand(draw, p, dtype, values)) for p in parts], axis=axis))
    if record.name == "pad":
        return _padded(draw, x, shape, dtype)
    return Case(call(record.name, x, **_layout_attributes(draw, record, shape)))


def _padded(draw: Draw, x: Any, shape: Shape, dtype: DType) -> Case:
    mode = draw(st.sampled_from(PAD_MODES))
    most = [{"reflect": extent - 1, "replicate": 4 * bool(extent), "circular": extent}.get(mode, 4) for extent in shape]
    sides = [tuple(draw(st.integers(0, min(max(width, 0), 4))) for width in most) for _ in range(2)]
    fill = [as_node(filled((), dtype, "special", draw(st.integers(0, 99))))] if mode == "constant" else []
    return Case(call("pad", x, *fill, before=sides[0], after=sides[1], mode=mode))


def _layout_attributes(draw: Draw, record: Operator, shape: Shape) -> dict[str, Any]:
    rank = len(shape)
    if record.name == "transpose":
        return {"permutation": tuple(draw(st.permutations(range(rank))))}
    if record.name == "broadcast_to":
        return {"shape": (3, *(7 if extent == 1 else extent for extent in shape))}
    if record.name == "reshape":
        count = math.prod(shape)
        divisors = [d for d in (2, 3, 4, 5, 16, 33) if count and count % d == 0]
        first = draw(st.sampled_from([1, *divisors])) if count else 0
        return {"shape": (first, count // first) if first else (0, 4)}
    starts = tuple(draw(st.integers(0, extent)) for extent in shape)
    steps = tuple(draw(st.sampled_from((1, 2, 3, -1, -2))) for _ in shape)
    starts = tuple(
        start if step > 0 else max(extent - 1 - start, 0)
        for start, step, extent in zip(starts, steps, shape, strict=True)
    )
    sizes = tuple(
        -(-(extent - start) // step) if step > 0 else (start // -step + 1 if extent else 0)
        for start, step, extent in zip(starts, steps, shape, strict=True)
    )
    return {"starts": starts, "sizes": sizes, "steps": steps}


_FAMILIES = {
    "elementwise": _elementwise,
    "reduction": _reduction,
    "row": _row,
    "contraction": _contraction,
    "attention": _attention,
    "attention_gradient": trained_attention,
    "paged_attention": paged_attention,
    "convolution": _convolution,
    "window": _window,
    "layout": _layout,
    "library": _library,
}

"""Kernel specifications for the tests of lowerings, and what torch computes for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera.dtypes import DType, accumulator, int32, promote_product
from tessera.ops import OPERATORS
from tessera.scheduling.families.paged_attention.spec import PagedAttentionSpec
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import (
    Argument,
    AttentionGradientSpec,
    AttentionSpec,
    ContractionSpec,
    MapReduceSpec,
    Output,
    Sums,
)


def _argument(dtype: DType, axes: Sequence[str], unit: str | None) -> Argument:
    """A buffer over `axes`, with a promised stride of 1 along `unit`."""
    return Argument(dtype, tuple(axes), tuple(1 if axis == unit else None for axis in axes))


class ContractionRecorder(Recorder):
    """A recorder of one matrix product; `body` runs the tile bodies of operators against it."""

    def __init__(self, batch: Sequence[str] = ()) -> None:
        super().__init__(None)
        self.batch = tuple(batch)

    def read(self, index: int, argument: Argument) -> Value:
        """An argument, widened to the dtype that arithmetic is done in."""
        return self.cast(self.load(index, argument.dtype, argument.axes), accumulator(argument.dtype))

    def product(self, dtype: DType) -> Value:
        """The register tile of the product."""
        return self.make("accumulator", (), (), dtype, (*self.batch, "m", "n"))


def apply(recorder: Recorder, operator: str, *values: Value, **attributes: object) -> Value:
    """The tile body of an operator."""
    record = OPERATORS[operator]
    result: Value = record.body(recorder, *values, **{**record.attributes, **attributes})
    return result


def matmul(
    dtype: DType,
    *,
    a_axes: str = "mk",
    b_axes: str = "kn",
    batch: Sequence[str] = (),
    b_batch: Sequence[str] | None = None,
    bias: bool = False,
    activation: str | None = None,
    prologue: str | None = None,
    one_block: bool = True,
) -> ContractionSpec:
    """`activation(prologue(A) @ B + bias)`; the unit stride lies along the last axis of each operand's `axes`."""
    recorder = ContractionRecorder(batch)
    b_batch = tuple(batch) if b_batch is None else b_batch
    arguments = [
        _argument(dtype, (*batch, *a_axes), a_axes[-1]),
        _argument(dtype, (*b_batch, *b_axes), b_axes[-1]),
        *([_argument(dtype, "n", "n")] if bias else []),
        _argument(dtype, (*batch, "m", "n"), "n"),
    ]
    a, b = recorder.read(0, arguments[0]), recorder.read(1, arguments[1])
    recorder.reduced = "k"
    if prologue is not None:
        a = apply(recorder, prologue, a)
    product = recorder.product(accumulator(dtype))
    result = product
    if bias:
        result = recorder.add(result, recorder.read(2, arguments[2]))
    if activation is not None:
        result = apply(recorder, activation, result)
    outputs = (Output(len(arguments) - 1, recorder.cast(result, dtype)),)
    name = "_".join(["matmul", *(["bias"] if bias else []), *([activation] if activation else []), dtype.name])
    return ContractionSpec(name, tuple(arguments), tuple(batch), a, b, product, outputs, one_block)


def mixed_matmul(a_dtype: DType, b_dtype: DType, *, b_axes: str = "kn", common: DType | None = None) -> ContractionSpec:
    """`A @ B` as operators make it of two dtypes: both are cast to the product's, or to a wider `common` one, then to
    that of the sums.
    """
    recorder, common = ContractionRecorder(), common or promote_product(a_dtype, b_dtype)
    arguments = (_argument(a_dtype, "mk", "k"), _argument(b_dtype, b_axes, b_axes[-1]), _argument(common, "mn", "n"))
    wide = accumulator(common)
    raw = [recorder.read(index, argument) for index, argument in enumerate(arguments[:2])]
    cast = [
        value if argument.dtype is common else recorder.cast(value, common)
        for value, argument in zip(raw, arguments[:2], strict=True)
    ]
    a, b = (recorder.cast(value, wide) for value in cast)
    product = recorder.product(wide)
    outputs = (Output(2, recorder.cast(product, common)),)
    return ContractionSpec(f"matmul_{a_dtype}_{b_dtype}", arguments, (), a, b, product, outputs, True)


def rows(
    operator: str,
    dtype: DType,
    parameters: int = 0,
    outer: Sequence[str] = ("o0",),
    before: Sequence[str] = (),
    **attributes: object,
) -> MapReduceSpec:
    """A row operator along the lane axis `c`, with `parameters` vectors along it (weight, bias), of its operand after
    the maps `before`.
    """
    recorder = ContractionRecorder()
    recorder.reduced = "c"
    arguments = [
        _argument(dtype, (*outer, "c"), "c"),
        *(_argument(dtype, "c", "c") for _ in range(parameters)),
        _argument(dtype, (*outer, "c"), "c"),
    ]
    values = [recorder.read(index, argument) for index, argument in enumerate(arguments[:-1])]
    for step in before:
        values[0] = apply(recorder, step, values[0])
    result = recorder.cast(apply(recorder, operator, *values, **attributes), dtype)
    name = f"{operator}_{dtype.name}"
    return MapReduceSpec(name, tuple(arguments), tuple(outer), "c", "c", (Output(len(arguments) - 1, result),))


def reduction(kind: str, dtype: DType, by_rows: bool) -> MapReduceSpec:
    """`sum`, `mean`, `max` ... of a matrix along its rows (`c` is reduced) or its columns (`r` is)."""
    reduced = "c" if by_rows else "r"
    recorder = ContractionRecorder()
    recorder.reduced = reduced
    outer = ("o0",) if by_rows else ()
    source = _argument(dtype, ("o0", "c") if by_rows else ("r", "c"), "c")
    result = apply(recorder, kind, recorder.read(0, source))
    stored = recorder.cast(result, dtype if result.dtype.kind == "float" else result.dtype)
    target = _argument(stored.dtype, "c" if not by_rows else ("o0",), None if by_rows else "c")
    name = f"{kind}_{'rows' if by_rows else 'columns'}_{dtype.name}"
    return MapReduceSpec(name, (source, target), outer, reduced, "c", (Output(1, stored),))


def add_scaled(dtype: DType) -> MapReduceSpec:
    """`x + factor * y`, of a matrix, a vector along its rows and a number."""
    recorder = ContractionRecorder()
    arguments = (
        _argument(dtype, ("o0", "c"), "c"),
        _argument(dtype, ("c",), "c"),
        Argument(accumulator(dtype), is_scalar=True),
        _argument(dtype, ("o0", "c"), "c"),
    )
    x, y = recorder.read(0, arguments[0]), recorder.read(1, arguments[1])
    factor = recorder.scalar(2, accumulator(dtype))
    result = recorder.cast(recorder.add(x, recorder.mul(factor, y)), dtype)
    return MapReduceSpec(f"add_scaled_{dtype.name}", arguments, ("o0",), None, "c", (Output(3, result),))


def add_transposed(dtype: DType, outer: Sequence[str] = ("o0",)) -> MapReduceSpec:
    """`x + y`, of a tensor that is contiguous along `o0` and one that is so along the lanes, as the result is."""
    recorder = ContractionRecorder()
    axes = (*outer, "c")
    arguments = (_argument(dtype, axes, "o0"), _argument(dtype, axes, "c"), _argument(dtype, axes, "c"))
    x, y = recorder.read(0, arguments[0]), recorder.read(1, arguments[1])
    result = recorder.cast(recorder.add(x, y), dtype)
    return MapReduceSpec(f"add_transposed_{dtype.name}", arguments, tuple(outer), None, "c", (Output(2, result),))


def close(actual: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    """Asserts that a result is what float64 gives, to the precision of its dtype; `scale` is the size of its terms."""
    eps = torch.finfo(actual.dtype).eps if actual.dtype.is_floating_point else 0.0
    torch.testing.assert_close(actual.double(), expected.double(), rtol=8 * eps, atol=8 * eps * scale, equal_nan=True)


def attention(
    dtype: DType,
    *,
    causal: bool = False,
    mask: DType | None = None,
    batch: Sequence[str] = ("b0",),
    shared: bool = False,
) -> AttentionSpec:
    """Attention whose last axis is contiguous everywhere; with `shared` the last batch axis shares keys and values."""
    recorder = ContractionRecorder(batch)
    inner = tuple(batch[:-1]) if shared else tuple(batch)
    wide = accumulator(dtype)
    arguments = [
        _argument(dtype, (*batch, "q", "d"), "d"),
        _argument(dtype, (*inner, "k", "d"), "d"),
        _argument(dtype, (*inner, "k", "v"), "v"),
        Argument(wide, is_scalar=True),
        *([_argument(mask, ("q", "k"), "k")] if mask is not None else []),
        _argument(dtype, (*batch, "q", "v"), "v"),
    ]
    q, k, v = (recorder.read(index, arguments[index]) for index in range(3))
    result = recorder.make("accumulator", (), (), wide, (*batch, "q", "v"))
    return AttentionSpec(
        f"flash_attention_{'causal_' if causal else ''}{dtype.name}",
        tuple(arguments),
        tuple(batch),
        q,
        k,
        v,
        recorder.scalar(3, wide),
        None if mask is None else recorder.read(4, arguments[4]),
        causal,
        result,
        (Output(len(arguments) - 1, recorder.cast(result, dtype)),),
    )


def paged_attention(dtype: DType, *, window: int = 0) -> PagedAttentionSpec:
    """Attention of one query each of heads that share keys, to pages whose last axis is contiguous."""
    recorder, wide, batch = ContractionRecorder(("b0", "b1")), accumulator(dtype), ("b0", "b1")
    arguments = [
        _argument(dtype, (*batch, "q", "d"), "d"),
        _argument(dtype, ("p", "b1", "k", "d"), "d"),
        _argument(dtype, ("p", "b1", "k", "v"), "v"),
        Argument(wide, is_scalar=True),
        _argument(int32, ("b0", "t"), "t"),
        _argument(int32, ("b0",), None),
        _argument(dtype, (*batch, "q", "v"), "v"),
    ]
    q, k, v, _, table, lengths, _ = (
        recorder.scalar(index, wide) if index == 3 else recorder.read(index, argument)
        for index, argument in enumerate(arguments)
    )
    result = recorder.make("accumulator", (), (), wide, (*batch, "q", "v"))
    return PagedAttentionSpec(
        f"paged_attention_{dtype.name}",
        tuple(arguments),
        batch,
        q,
        k,
        v,
        recorder.scalar(3, wide),
        None,
        False,
        result,
        (Output(6, recorder.cast(result, dtype)),),
        table=table,
        lengths=lengths,
        window=window,
        heads_as_queries=True,
    )


def attention_gradient(
    dtype: DType,
    of: str,
    *,
    causal: bool = False,
    mask: DType | None = None,
    batch: Sequence[str] = ("b0",),
    shared: bool = False,
) -> AttentionGradientSpec:
    """The gradient of `attention`, of queries ("q"), or of keys, values or both ("k", "v", "kv")."""
    forward = attention(dtype, causal=causal, mask=mask, batch=batch, shared=shared)
    recorder, wide = ContractionRecorder(batch), accumulator(dtype)
    inner = tuple(batch[:-1]) if shared else tuple(batch)
    axes = {"q": (*batch, "q", "d"), "k": (*inner, "k", "d"), "v": (*inner, "k", "v")}
    arguments = [
        *forward.arguments[:3],
        _argument(dtype, (*batch, "q", "v"), "v"),
        *(Argument(wide, (*batch, "q"), (*(None,) * len(batch), 1)) for _ in range(2)),
        *forward.arguments[3:-1],
        *(_argument(wide, axes[each], axes[each][-1]) for each in of),
    ]
    q, k, v, g, logarithms, mean = (recorder.read(index, arguments[index]) for index in range(6))
    sums = {
        each: recorder.make("accumulator", (), (number,), wide, (*batch, *axes[each][-2:]))
        for number, each in enumerate("qkv")
    }
    return AttentionGradientSpec(
        f"attention_d{of}_{'causal_' if causal else ''}{dtype.name}",
        tuple(arguments),
        tuple(batch),
        q,
        k,
        v,
        g,
        logarithms,
        mean,
        recorder.scalar(6, wide),
        None if mask is None else recorder.read(7, arguments[7]),
        causal,
        sums["q"],
        tuple(Output(len(arguments) - len(of) + place, sums[each]) for place, each in enumerate(of)),
        Sums(sums["k"]) if "k" in of else None,
        Sums(sums["v"]) if "v" in of else None,
    )

"""`memcpy.async_`: what it copies, what it refuses, and what it says about pinning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tessera import memcpy, op, stream
from tessera.errors import ArgumentError, DeviceError, DTypeError, ShapeMismatchError
from tessera.runtime.streams import copies
from tests.unit.runtime.streams.support import held


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (3, 0, 2), (13, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_every_dtype_and_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    s = stream.create()
    source = (torch.randn(shape) * 3).to(dtype)
    target = torch.full(shape, 1).to(dtype)
    copy = memcpy.async_(dst=target, src=source, stream=s)
    copy.wait()
    assert torch.equal(target, source)
    assert copy.direction == "h2h"
    assert copy.nbytes == source.nbytes


@pytest.mark.parametrize("values", [[float("nan"), float("inf"), -0.0, 1e-45]])
def test_bits_are_copied(values: list[float]) -> None:
    s = stream.create()
    source, target = torch.tensor(values), torch.zeros(2, 4)
    memcpy.async_(dst=target[1], src=source, stream=s).wait()
    assert torch.equal(target[1].view(torch.int32), source.view(torch.int32))
    assert not target[0].any()


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, 1:4],
    "every other row": lambda x: x[::2],
    "every other column": lambda x: x[:, ::2],
    "one column": lambda x: x[:, 2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_on_either_side(layout: str) -> None:
    s = stream.create()
    view = LAYOUTS[layout]
    base = torch.randn(6, 8)
    expected = view(base).clone()
    dense = torch.empty(expected.shape)
    memcpy.async_(dst=dense, src=view(base), stream=s)
    memory = torch.full((6, 8), torch.nan)
    memcpy.async_(dst=view(memory), src=dense, stream=s).wait()
    assert torch.equal(dense, expected)
    assert torch.equal(view(memory), expected)
    assert memory.isnan().sum() == memory.numel() - expected.numel()


def test_numpy_on_both_sides() -> None:
    s = stream.create()
    source, target = numpy.arange(12.0).reshape(3, 4), numpy.zeros((3, 4))
    memcpy.async_(dst=target, src=source, stream=s).wait()
    assert (target == source).all()
    memcpy.async_(dst=target.T, src=torch.ones(4, 3, dtype=torch.float64), stream=s).wait()
    assert (target == 1).all()


def test_an_expression_is_computed_first() -> None:
    s = stream.create()
    a, x = torch.randn(4, 3), torch.zeros(4, 3)
    with held(s):
        copy = memcpy.async_(dst=x, src=op.tensor(a) * 2, stream=s)
        assert not copy.query()
    copy.wait()
    assert copy.query()
    assert torch.equal(x, a * 2)


def test_async_is_reached_by_its_name_in_the_specification() -> None:
    assert getattr(memcpy, "async") is memcpy.async_
    with pytest.raises(AttributeError, match="asink"):
        memcpy.asink  # noqa: B018


def test_what_does_not_fit_is_refused_at_the_call() -> None:
    s = stream.create()
    x = torch.zeros(4, 4)
    refused: list[tuple[type[Exception], Any, Any]] = [
        (ShapeMismatchError, x, torch.zeros(4, 5)),
        (DTypeError, x, torch.zeros(4, 4, dtype=torch.float64)),
        (ArgumentError, x[:3], x[1:]),
        (ArgumentError, x.t(), x),
        (ArgumentError, torch.zeros(1).expand(4, 4), x),
        (ArgumentError, op.tensor(x), x),
        (ArgumentError, x, [[0.0] * 4] * 4),
        (ArgumentError, x.clone().requires_grad_(), x),
        (ArgumentError, numpy.broadcast_to(numpy.zeros(4, "float32"), (4, 4)), x),
    ]
    for kind, dst, src in refused:
        with pytest.raises(kind):
            memcpy.async_(dst=dst, src=src, stream=s)
    with pytest.raises(ArgumentError, match="as a stream"):
        memcpy.async_(dst=x, src=torch.ones(4, 4), stream=None)  # type: ignore[arg-type]
    assert s.query()
    assert not x.any()


def test_blocks_of_one_matrix_may_be_copied_to_each_other() -> None:
    s = stream.create()
    x = torch.arange(12.0).reshape(3, 4)
    memcpy.async_(dst=x[:, :2], src=x[:, 2:], stream=s).wait()
    assert torch.equal(x[:, :2], x[:, 2:])


def test_without_cuda_pinning_is_null_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    s = stream.create()
    buffer = memcpy.pinned((3, 5), "bf16")
    assert (buffer.shape, buffer.dtype) == ((3, 5), torch.bfloat16)
    assert memcpy.pin(buffer) is buffer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = memcpy.async_(dst=buffer, src=torch.zeros(3, 5, dtype=torch.bfloat16), stream=s)
    assert copy.pinned is None
    assert "no CUDA device" in copy.capability["pinned"]
    copy.wait()
    with pytest.raises(ArgumentError, match="negative"):
        memcpy.pinned((-1,), "fp32")


def test_pageable_memory_is_warned_of_once_per_place() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for place in ("train.py:1", "train.py:1", "train.py:2"):
            copies._warn_pageable(place)
    assert [each.category for each in caught] == [memcpy.PageableMemoryWarning] * 2
    assert "train.py:2" in str(caught[1].message)
    copies._warned.clear()


def test_a_copy_says_what_it_is() -> None:
    s = stream.create()
    copy = memcpy.async_(dst=torch.zeros(2), src=torch.ones(2), stream=s)
    copy.wait()
    assert repr(copy) == "<copy h2h of 8 bytes, pinned: None, made>"


def test_a_stream_of_another_device_is_refused() -> None:
    s = stream.create()
    s.core.device = "cuda:0"
    with pytest.raises(DeviceError, match="cuda:0"):
        memcpy.async_(dst=torch.zeros(2), src=torch.ones(2), stream=s)
    with pytest.raises(DeviceError, match=r"on cuda:0, and the operands are on cpu"):
        op.exp(torch.zeros(2), stream=s)

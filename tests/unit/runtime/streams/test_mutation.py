"""torch writing to what a stream still reads: seen by the tensor's version, unlike the runtime's own writes."""

from __future__ import annotations

import sys

import pytest
import torch

from tessera import memcpy, op, stream
from tessera.errors import InputMutatedError
from tests.unit.runtime.streams.support import held


def test_a_write_of_the_program_before_the_read_is_an_error_of_the_value() -> None:
    s = stream.create()
    a = torch.randn(5)
    with held(s):
        y, line = op.exp(a, stream=s), sys._getframe().f_lineno
        a.add_(1)
    with pytest.raises(InputMutatedError, match="while a stream was reading it") as caught:
        y.torch()
    assert caught.value.where is not None
    assert caught.value.where.endswith(f"test_mutation.py:{line}")


def test_a_view_counts_as_the_whole() -> None:
    s = stream.create()
    a, out = torch.randn(5, 4), torch.zeros(5, 2)
    with held(s):
        copy = memcpy.async_(dst=out, src=a[:, :2], stream=s)
        a[0] = 7
    with pytest.raises(InputMutatedError):
        copy.wait()


def test_a_write_after_the_read_is_none() -> None:
    s = stream.create()
    a = torch.randn(5)
    expected = a.exp()
    y = op.exp(a, stream=s)
    s.synchronize()
    a.add_(1)
    assert torch.allclose(y.torch(), expected)


def test_writes_of_the_runtime_are_in_order_and_no_error() -> None:
    reading, writing = stream.create(), stream.create()
    a = torch.randn(6, 8)
    expected, half = a.exp(), a[:, 4:].clone()
    with held(reading):
        y = op.exp(a, stream=reading)
        z = op.neg(a[:, 4:], stream=reading)
        for _ in range(3):
            memcpy.async_(dst=a, src=torch.zeros(6, 8), stream=writing)
            (op.tensor(torch.ones(6, 4)) * 2).eval(out=a[:, :4], stream=writing)
    assert torch.allclose(y.torch(), expected)
    assert torch.equal(z.torch(), -half)
    writing.synchronize()
    assert (a[:, :4] == 2).all()


def test_copies_into_one_half_do_not_spoil_reads_of_the_other() -> None:
    reading, writing = stream.create(), stream.create()
    a = torch.randn(6, 8)
    with held(reading):
        y = op.neg(a[:, 4:], stream=reading)
        memcpy.async_(dst=a[:, :4], src=torch.ones(6, 4), stream=writing).wait()
    assert torch.equal(y.torch(), -a[:, 4:])


def test_inference_tensors_and_arrays_have_no_version() -> None:
    s = stream.create()
    with torch.inference_mode():
        a = torch.ones(4)
    with held(s):
        y, z = op.exp(a, stream=s), op.exp(a.numpy(), stream=s)
    assert torch.allclose(y.torch(), a.exp())
    assert torch.allclose(z.torch(), a.exp())

"""Memory that leaves Tessera: a write there is seen by what is computed from it later, or refused, or hits a copy."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy
import pytest
import torch

from tessera import op, stream
from tessera.errors import ArgumentError, InputMutatedError
from tessera.handle import Tensor
from tessera.runtime.memory.buffers import memory_stats


def _result(size: int = 3) -> Tensor:
    return op.relu(torch.ones(size)).eval()


def _complex_parts() -> Tensor:
    return op.fft(torch.ones(4)).eval()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("size", [3, 100_000])
def test_what_was_computed_from_a_result_does_not_see_writes(size: int, inference: bool) -> None:
    with torch.inference_mode(inference):
        y = _result(size)
        pending, part = y + 1, y[1:]
        y.torch().mul_(10)
        for later in (pending, y * 2, part + 1):
            with pytest.raises(InputMutatedError):
                later.eval()
        assert y.tolist() == [10.0] * size


def test_what_was_evaluated_before_a_write_stays() -> None:
    y = _result()
    z = (y + 1).eval()
    y.torch().mul_(10)
    assert z.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("alias", [lambda t: t.detach(), lambda t: t[:2], lambda t: t.view(torch.int32)])
def test_writes_by_views_of_an_export_are_seen(alias: Callable[[torch.Tensor], torch.Tensor]) -> None:
    y = _result()
    z = y + 1
    alias(y.torch()).zero_()
    with pytest.raises(InputMutatedError):
        z.eval()


def test_writes_by_out_are_seen() -> None:
    y = _result()
    z = y + 1
    op.exp(torch.zeros(3)).eval(out=y.torch())
    with pytest.raises(InputMutatedError):
        z.eval()


def test_writes_to_the_parts_of_complex_results_are_seen() -> None:
    y = _complex_parts()
    z = y * 2
    torch.view_as_real(y.torch())[..., 1] = 3.0
    with pytest.raises(InputMutatedError):
        z.eval()


def test_writes_to_results_of_streams_are_seen() -> None:
    y = op.relu(torch.ones(3)).eval(stream=stream.create())
    z = y + 1
    y.torch().mul_(10)
    with pytest.raises(InputMutatedError):
        z.eval()


def test_writes_to_results_on_the_interpreter_are_seen() -> None:
    y = op.relu(op.tensor(torch.ones(3)).to("interpreter")).eval()
    z = y + 1
    y.torch().mul_(10)
    with pytest.raises(InputMutatedError):
        z.eval()


def test_an_exported_input_has_the_version_of_the_users_tensor() -> None:
    mine = torch.ones(4, 4).T[1:]
    x = op.tensor(mine)
    z = x + 1
    exported = x.torch()
    exported[0, 0] = 7.0
    assert mine[0, 0] == 7.0
    assert exported.stride() == mine.stride()
    with pytest.raises(InputMutatedError):
        z.eval()


def test_of_an_array_whose_writes_nobody_counts_torch_gets_a_copy() -> None:
    mine = numpy.ones(3, numpy.float32)
    x = op.tensor(mine)
    x.torch().zero_()
    assert mine.tolist() == [1.0, 1.0, 1.0]
    assert not x.numpy().flags.writeable
    assert mine.flags.writeable


@pytest.mark.parametrize("array_of", [Tensor.numpy, numpy.asarray])
def test_arrays_cannot_be_written_to(array_of: Callable[[Tensor], numpy.ndarray]) -> None:
    y = _result()
    array = array_of(y)
    assert array.ctypes.data == y.leaves[0].address
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    with pytest.raises(TypeError):
        memoryview(array.data)[0] = 5
    copy = numpy.array(y)
    copy[0] = 5
    assert y.tolist() == [1.0, 1.0, 1.0]


def test_others_get_copies() -> None:
    y = _result()
    torch.utils.dlpack.from_dlpack(y).zero_()
    assert (y + 1).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ArgumentError, match="copy"):
        numpy.from_dlpack(y, copy=False)


def test_constants_of_results_are_made_anew_after_a_write() -> None:
    y = op.matmul(torch.eye(64), torch.ones(64, 64)).eval()
    fixed = op.constant(y)
    x = torch.eye(64)
    assert op.matmul(x, fixed).torch().sum() == 64 * 64
    y.torch().mul_(2)
    assert op.matmul(x, fixed).torch().sum() == 2 * 64 * 64


def test_memory_is_not_used_again_while_an_export_lives_and_is_afterwards() -> None:
    exported = _result(100_000).torch()
    others = [_result(100_000) for _ in range(4)]
    assert exported.data_ptr() not in {other.leaves[0].address for other in others}
    before = memory_stats()["allocated_bytes"]
    del exported
    assert memory_stats()["allocated_bytes"] == before - 400_000 // 4096 * 4096 - 4096


def test_many_exports_of_one_result_keep_nothing() -> None:
    before = memory_stats()["allocated_bytes"]
    y = _result(100_000)
    for _ in range(100):
        y.torch()
    del y
    assert memory_stats()["allocated_bytes"] <= before


def test_a_pickled_part_holds_no_more_than_its_elements() -> None:
    y = _result(100_000)
    assert len(pickle.dumps(y[:4])) < 4096

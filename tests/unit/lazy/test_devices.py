"""Devices in structures: which elements lie where, and what may meet."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch

from tessera import errors, op
from tessera.dtypes import fp32
from tessera.lazy.devices import device_named, is_cpu_memory, torch_device
from tessera.lazy.leaves.transfer import on_device
from tessera.lazy.structures import interning
from tessera.stream import create

X = torch.arange(6.0).reshape(2, 3)


def test_names_of_devices() -> None:
    assert [device_named(text) for text in ("cpu", "cpu:0", "interpreter", "cuda:3", torch.device("cuda", 1))] == [
        "cpu",
        "cpu",
        "interpreter",
        "cuda:3",
        "cuda:1",
    ]
    for text in ("cpu:1", "gpu", "meta", "", 3, "cuda:", "interpreter:2"):
        with pytest.raises(errors.DeviceError, match="do not run there"):
            device_named(text)
    assert is_cpu_memory("interpreter")
    assert not is_cpu_memory("cuda:0")
    assert torch_device("interpreter") == torch.device("cpu")


def test_the_device_is_part_of_what_a_structure_is() -> None:
    here, there = interning.buffer((2, 3), (3, 1), fp32), interning.buffer((2, 3), (3, 1), fp32, "cuda:1")
    assert here is interning.buffer((2, 3), (3, 1), fp32, "cpu")
    assert here is not there
    assert (here.device, there.device) == ("cpu", "cuda:1")


def test_results_lie_where_their_operands_do_and_numbers_anywhere() -> None:
    x = op.tensor(X, device="interpreter")
    assert x.state[0].device == "interpreter"
    assert (x * 2.5 + 1).state[0].device == "interpreter"
    assert op.where(x > 0, x, 0.0).transpose()[1].state[0].device == "interpreter"
    assert op.exp(X).state[0].device == "cpu"
    assert interning.scalar(fp32).device is None


def test_operands_on_two_devices_are_refused_at_the_call_and_both_are_named() -> None:
    x, y = op.tensor(X, device="interpreter"), op.tensor(X)
    attempts: list[Callable[[], object]] = [
        lambda: x + y,
        lambda: op.matmul(x, y.T),
        lambda: op.concat([y, x]),
        lambda: x + X,
    ]
    for attempt in attempts:
        with pytest.raises(errors.DeviceError, match=r"(interpreter and cpu|cpu and interpreter)") as caught:
            attempt()
        assert "test_devices.py" in (caught.value.where or "")


def test_a_tensor_of_the_interpreter_borrows_memory() -> None:
    x = op.tensor(X, device="interpreter")
    assert x.torch().data_ptr() == X.data_ptr()
    assert x.to("cpu").torch().data_ptr() == X.data_ptr()
    assert x.to("cpu").state[0].device == "cpu"
    assert x.to("interpreter") is x
    assert x.device == torch.device("cpu")
    assert "interpreter" in repr(x)
    assert op.tensor(x).state[0].device == "interpreter"
    again = pickle.loads(pickle.dumps(x))
    assert again.state[0].device == "interpreter"
    assert torch.equal(again.torch(), X)


def test_writing_to_what_was_placed_is_noticed() -> None:
    values = X.clone()
    y = op.exp(op.tensor(values, device="interpreter"))
    values.add_(1)
    with pytest.raises(errors.InputMutatedError):
        y.eval()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(errors.DeviceError, match="cuda:0") as caught:
        op.tensor(X, device="cuda")
    assert "interpreter" in str(caught.value)
    with pytest.raises(errors.DeviceError, match="cuda:0 cannot be reached"):
        on_device(op.tensor(X).state[1][0], "cuda:0")


def test_results_go_into_memory_of_their_device() -> None:
    x = op.tensor(X)
    with pytest.raises(errors.DeviceError, match=r"on meta|out= on meta"):
        (x + 1).eval(out=torch.empty(2, 3, device="meta"))


def test_a_driver_that_is_too_old_is_the_reason_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    for attempt in (
        lambda: op.tensor(X, device="cuda"),
        lambda: op.tensor(X).to("cuda:1"),
        lambda: create(device="cuda"),
    ):
        with pytest.raises(
            errors.DeviceError, match=r"torch sees no GPU: .* too old \(found version 11040\)\.\n"
        ) as caught:
            attempt()
        assert "Please update" not in caught.value.message

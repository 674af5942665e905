"""What becomes a leaf, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy
import pytest
import torch

from tessera import op
from tessera.dtypes import bf16, bool_, fp32, fp64, int64
from tessera.errors import ArgumentError, DeviceError, DTypeError, GradDetachedError, MemoryLimitError
from tessera.handle import Tensor
from tessera.lazy.leaves.sources import from_data, from_numpy, from_torch
from tests import forked


def test_a_torch_tensor_is_borrowed_with_its_strides() -> None:
    tensor = torch.randn(4, 6)[1:, ::2].T
    leaf = from_torch(tensor)
    assert leaf.address == tensor.data_ptr()
    assert leaf.shape == (3, 3)
    assert leaf.strides == (2, 6)
    assert leaf.dtype is fp32
    assert leaf.version == tensor._version


def test_memory_of_a_tensor_that_requires_grad_is_read_outside_of_grad_mode_only() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    for tensor in (parameter, torch.ones(3, requires_grad=True)):
        with pytest.raises(GradDetachedError, match="requires grad") as caught:
            op.tensor(tensor)
        assert any("detach" in hint for hint in caught.value.hints)
    with torch.no_grad():
        assert op.exp(parameter).tolist() == pytest.approx([numpy.e] * 3)
        assert op.exp(parameter).structure is op.exp(torch.ones(3)).structure


def test_other_devices_are_refused() -> None:
    with pytest.raises(DeviceError, match="meta"):
        op.exp(torch.ones(3, device="meta"))
    with pytest.raises(DeviceError, match="cuda"):
        op.tensor((3,), device="cuda")
    # The layout was seen before, on the right device.
    from_torch(torch.ones(7, 9))
    with pytest.raises(DeviceError):
        from_torch(torch.ones(7, 9, device="meta"))


def test_sparse_quantized_subclassed_and_complex_tensors_are_refused() -> None:
    class Named(torch.Tensor):
        pass

    tensors = [
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.ones(3).as_subclass(Named),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.uint16),
    ]
    for tensor in tensors:
        with pytest.raises(DTypeError) as caught:
            op.exp(tensor)
        assert caught.value.code == "E_DTYPE"


def test_pending_negation_is_resolved() -> None:
    complex_numbers = torch.tensor([1 + 2j, 3 - 4j])
    view = complex_numbers.conj().imag
    assert view.is_neg()
    assert op.tensor(view).tolist() == [-2.0, 4.0]
    # The same layout without negation, and with it again.
    assert op.tensor(complex_numbers.imag).tolist() == [2.0, -4.0]
    assert op.tensor(view).tolist() == [-2.0, 4.0]


def test_numpy_is_borrowed_where_kernels_can_read_it() -> None:
    array = numpy.arange(12, dtype=numpy.float64).reshape(3, 4)
    leaf = from_numpy(array[:, 1:3])
    assert leaf.address == array.ctypes.data + 8
    assert leaf.strides == (4, 1)
    for copied in (array[::-1], array.astype(">f8")):
        leaf = from_numpy(copied)
        assert leaf.dtype is fp64
        assert numpy.array_equal(op.tensor(copied).numpy(), copied)
    read_only = numpy.ones(3)
    read_only.setflags(write=False)
    assert op.tensor(read_only).tolist() == [1.0, 1.0, 1.0]


def test_lists_numbers_and_dlpack_become_tensors() -> None:
    assert from_data([[1, 2], [3, 4]]).dtype is int64
    assert from_data([1.5, 2.5]).dtype is fp32
    assert from_data([True, False]).dtype is bool_
    assert from_data([1, 2], bf16).dtype is bf16
    shared = numpy.ones((2, 3), numpy.float32)

    class Producer:
        def __dlpack__(self, **options: object) -> object:
            return shared.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return shared.__dlpack_device__()

    assert from_data(Producer()).address == shared.ctypes.data
    for bad in ([[1, 2], [3]], "text", [object()], {1: 2}):
        with pytest.raises(ArgumentError):
            from_data(bad)


def test_a_shape_gives_reproducible_normal_values_that_differ_between_tensors() -> None:
    first, second = op.tensor((64, 64)), op.tensor(torch.Size((64, 64)))
    assert first.dtype is fp32
    assert abs(first.torch().mean().item()) < 0.1
    assert abs(first.torch().std().item() - 1) < 0.1
    assert not torch.equal(first.torch(), second.torch())
    assert op.tensor((3,), dtype="bf16").dtype is bf16
    assert op.tensor(()).shape == ()
    assert op.tensor((0, 5)).torch().shape == (0, 5)


def test_values_of_a_shape_are_the_same_in_every_process() -> None:
    script = "from tessera import op; print(op.tensor((2, 2)).tolist(), op.tensor((3,), dtype='int64').tolist())"
    # A new process hashes strings otherwise than the fork of an older one.
    new = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert forked.run(script).stdout == new.stdout != ""


def test_a_list_is_data_and_a_tuple_of_ints_is_a_shape() -> None:
    assert op.tensor([2, 3]).shape == (2,)
    assert op.tensor((2, 3)).shape == (2, 3)
    assert op.tensor((2.0, 3.0)).tolist() == [2.0, 3.0]
    existing = op.tensor([1.0])
    assert op.tensor(existing) is existing
    assert isinstance(op.tensor(existing, dtype="fp64"), Tensor)


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 30), (1 << 25, 1 << 25)])
def test_a_shape_beyond_memory_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(MemoryLimitError, match=re.escape(str(shape))):
        op.tensor(shape)

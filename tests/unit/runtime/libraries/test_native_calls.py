"""Small calls of torch that routines of Tessera's own make: the same bits, and torch is called for what they leave."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from tessera.dtypes import dtype_of
from tessera.errors import IndexRangeError
from tessera.ops import OPERATORS
from tessera.ops.record import Shaped
from tessera.runtime.libraries.library import LibraryKernel, LibraryOperand

KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2, ctypes.c_void_p)


class Called:
    """An operator's call of the library over tensors, which counts how often torch is called."""

    def __init__(self, name: str, inputs: Sequence[torch.Tensor], **attributes: Any) -> None:
        self.record = OPERATORS[name]
        self.attributes = {**self.record.attributes, **attributes}
        self.inputs = list(inputs)
        self.times = 0
        self.error: Exception | None = None

    def outputs(self) -> list[torch.Tensor]:
        """Memory for all results."""
        shaped = [Shaped(tuple(x.shape), dtype_of(x.dtype)) for x in self.inputs]
        found = []
        for name in self.record.joint or (self.record.name,):
            shape, dtype = OPERATORS[name].result_of(shaped, [each.dtype for each in shaped], self.attributes)
            found.append(torch.empty(shape, dtype=dtype.torch))
        return found

    def expected(self) -> list[torch.Tensor]:
        """The results of torch."""
        results = self.outputs()
        self.record.library(self.inputs, results, self.attributes)
        return results

    def run(self, results: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """The results as a plan computes them."""
        results = self.outputs() if results is None else list(results)
        tensors = [*self.inputs, *results]
        operands = [LibraryOperand(number, 8, x.dtype, tuple(x.shape), x.stride()) for number, x in enumerate(tensors)]
        split = len(self.inputs)
        kernel = LibraryKernel(
            self.record.name, self._call, operands[:split], operands[split:], self.attributes, self.record.native
        )
        table = (ctypes.c_int64 * len(tensors))(*[x.data_ptr() - 8 for x in tensors])
        words = (ctypes.c_int64 * max(1, len(kernel.descriptors)))(*kernel.descriptors)
        KERNEL(kernel.address)(ctypes.addressof(table), ctypes.addressof(words), 0, 1, None)
        return results

    def _call(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Mapping[str, Any]
    ) -> None:
        self.times += 1
        try:
            self.record.library(inputs, outputs, attributes)
        except IndexRangeError as error:
            self.error = error


def bits(x: torch.Tensor) -> torch.Tensor:
    """What a tensor is, NaN and signs of zeros among it."""
    return x if x.dtype == torch.bool else x.reshape(-1).view(torch.int8)


def agrees(called: Called, times: int = 0) -> None:
    """Asserts the bits of torch's results, and how often torch was called for them."""
    for found, wanted in zip(called.run(), called.expected(), strict=True):
        assert torch.equal(bits(found), bits(wanted))
    assert called.times == times


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool]


def numbers(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Numbers with NaN and infinities among floats."""
    x = torch.randint(-5, 5, tuple(shape)).to(dtype)
    if x.is_floating_point() and x.numel() > 4:
        x.view(-1)[:4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((5, 3), 0), ((5, 3), 1), ((2, 7, 11), 1), ((1, 1), 1)])
def test_parts_are_taken(dtype: torch.dtype, shape: tuple[int, ...], axis: int) -> None:
    for index in (
        torch.randint(shape[axis], (4,)),
        torch.randint(shape[axis], (2, 3)),
        torch.zeros((), dtype=torch.int64),
    ):
        agrees(Called("take", [numbers(shape, dtype), index], axis=axis))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((5, 3), 0), ((5, 3), 1), ((2, 7, 11), 1)])
def test_parts_are_replaced(dtype: torch.dtype, shape: tuple[int, ...], axis: int) -> None:
    index = torch.tensor([3, 0, 3]) % shape[axis]  # of those at one place the last one stays
    source = numbers((*shape[:axis], 3, *shape[axis + 1 :]), dtype)
    agrees(Called("put", [numbers(shape, dtype), index, source], axis=axis))
    agrees(Called("put", [numbers((1,) * len(shape), dtype).expand(shape), index, source], axis=axis))


def test_a_part_is_replaced_in_its_place_whatever_lies_around_it() -> None:
    cache = torch.randn(5, 1 << 10)
    own = cache[1:4]
    called = Called("put", [own, torch.tensor([1]), torch.randn(1, 1 << 10)], axis=0)
    wanted = torch.cat([cache[:1], called.expected()[0], cache[4:]])
    called.run([own])
    assert torch.equal(cache, wanted)
    assert called.times == 0


def test_what_is_large_is_not_copied_by_one_thread() -> None:
    cache = torch.randn(1 << 10, 1 << 8)
    called = Called("put", [cache, torch.tensor([5]), torch.randn(1, 1 << 8)], axis=0)
    wanted = called.expected()[0]
    assert torch.equal(called.run()[0], wanted)
    assert called.times == 1
    assert torch.equal(called.run([cache])[0], wanted)
    assert called.times == 1


@pytest.mark.parametrize(
    ("name", "others"), [("take", ()), ("put", (torch.zeros(2, 3),)), ("checked_index", None)], ids=str
)
@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40, -(1 << 63)])
def test_torch_is_asked_about_an_index_out_of_range(name: str, others: Any, wrong: int) -> None:
    index = torch.tensor([0, wrong])
    if others is None:
        called = Called(name, [index], what="index", extent=5, ignored=None)
    else:
        called = Called(name, [torch.zeros(5, 3), index, *others], axis=0)
    called.run()
    assert called.times == 1
    assert str(wrong) in str(called.error)


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize("ignored", [None, -100, 3])
def test_indices_are_checked(from_end: bool, ignored: int | None) -> None:
    index = torch.tensor([[0, 4, 2], [3, 1, 0]])
    if from_end:
        index = index - 5 * (index > 2).long()
    if ignored is not None:
        index[0, 1] = ignored
    agrees(Called("checked_index", [index], what="", extent=5, ignored=ignored, from_end=from_end))
    agrees(Called("checked_index", [torch.empty(0, dtype=torch.int64)], extent=0, ignored=ignored, from_end=from_end))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (64,), (3, 17), (2, 5, 1)])
def test_rows_are_ordered(dtype: torch.dtype, descending: bool, shape: tuple[int, ...]) -> None:
    x = numbers(shape, dtype)
    agrees(Called("sort_values", [x], axis=1 if len(shape) == 3 else len(shape) - 1, descending=descending))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("extent", "k"), [(1, 1), (4, 2), (17, 3), (17, 17)])
def test_the_first_of_rows_are_chosen(dtype: torch.dtype, largest: bool, extent: int, k: int) -> None:
    x = torch.stack([torch.randperm(extent) - 4 for _ in range(5)]).to(dtype)
    agrees(Called("topk_values", [x], k=k, axis=1, largest=largest))


@pytest.mark.parametrize("row", [[1.0, 2.0, 2.0, 0.0], [2.0, 1.0, 1.0, 0.0], [0.0, 1.0, math.nan, 2.0]])
def test_torch_chooses_among_equal_ones_and_nan(row: list[float]) -> None:
    agrees(Called("topk_values", [torch.tensor([[3.0, 4.0, 5.0, 6.0], row])], k=2, axis=1), times=1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(0,), (1,), (9,), (3, 11)])
def test_whole_numbers_are_added_up(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    agrees(Called("cumsum", [numbers(shape, dtype)], axis=len(shape) - 1))


@pytest.mark.parametrize("count", [0, 1, 1000])
@pytest.mark.parametrize(("bins", "least", "most"), [(4, 0.0, 3.0), (7, -1.0, 2.5), (100, -0.3, 0.7), (1, 0.0, 1e-3)])
def test_numbers_are_counted(count: int, bins: int, least: float, most: float) -> None:
    x = torch.randn(count)
    x[: min(count, 4)] = torch.tensor([least, most, math.nan, math.inf])[: min(count, 4)]
    agrees(Called("histc", [x], bins=bins, least=least, most=most))


@pytest.mark.parametrize(("bins", "least", "most"), [(10, -1e38, 1.5e38), (4, 0.0, 2e38), (2, 1.0, 1.0 + 1e-12)])
def test_bins_beyond_what_fp32_can_tell_are_torchs(bins: int, least: float, most: float) -> None:
    x = torch.tensor([1e38, 0.0, 3.0, -1e38])
    agrees(Called("histc", [x], bins=bins, least=least, most=most), times=1)


def test_results_that_lie_otherwise_are_torchs() -> None:
    x, index = torch.randint(9, (4, 6)), torch.tensor([2, 0])
    for called in (
        Called("cumsum", [x], axis=1),
        Called("take", [x, index], axis=1),
        Called("sort_values", [x], axis=1),
    ):
        wide = [torch.zeros(len(each), each.shape[1] + 3, dtype=each.dtype)[:, 1:-2] for each in called.outputs()]
        for found, wanted in zip(called.run(wide), called.expected(), strict=True):
            assert torch.equal(found, wanted)
        assert called.times == 1


def test_what_lies_otherwise_is_torchs() -> None:
    x = torch.randint(9, (4, 6))
    agrees(Called("sort_values", [x.T], axis=1), times=1)
    agrees(Called("cumsum", [x], axis=0), times=1)
    agrees(Called("take", [x.T, torch.tensor([1, 2])], axis=0), times=1)
    agrees(Called("histc", [x.float()], bins=3), times=1)  # bounds that the data say

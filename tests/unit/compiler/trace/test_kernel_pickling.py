"""Kernels are pickled and copied as functions are: by reference."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest
import torch

from tessera import op
from tessera.errors import ArgumentError


@op.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Layer:
    """An object with a kernel as its method."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @op.kernel
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def _first(x: list[float]) -> float:
    return float(doubled(torch.tensor(x)).torch()[0])  # type: ignore[attr-defined]


def test_a_kernel_of_a_module_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled


def test_a_kernel_without_a_name_in_its_module_is_refused() -> None:
    with pytest.raises(ArgumentError, match="does not lead to it"):
        pickle.dumps(op.kernel(lambda x: x * 2))


def test_copies_of_a_kernel_are_the_kernel() -> None:
    local = op.kernel(lambda x: x * 2)
    assert copy.copy(local) is local
    assert copy.deepcopy([local])[0] is local


def test_a_spawned_process_gets_the_kernel() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(pickle.loads, (pickle.dumps(doubled),)).__class__ is type(doubled)
        assert pool.apply(_first, ([3.0],)) == 6.0


def test_a_method_of_an_object_is_pickled_and_copied_with_its_object() -> None:
    layer = Layer(3.0)
    for method in (pickle.loads(pickle.dumps(layer.scaled)), copy.deepcopy(layer.scaled)):
        layer.factor = 5.0
        assert method(torch.ones(2)).tolist() == [3.0, 3.0]
        layer.factor = 3.0

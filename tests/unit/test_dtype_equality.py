"""A dtype equals what means it, and nothing else."""

from __future__ import annotations

import pickle

import numpy
import pytest
import torch

from tessera import dtypes, op
from tessera.dtypes import ALL, DType, tf32


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_it_equals_its_names_and_torchs_dtype(dtype: DType) -> None:
    assert dtype == dtype.name
    assert dtype.name == dtype
    assert (dtype == dtype.torch) is (dtype is not tf32)
    assert (dtype.torch == dtype) is (dtype is not tf32)
    assert (dtype != dtype.torch) is (dtype is tf32)
    assert [other for other in ALL if other == dtype] == [dtype]
    assert {dtype: 1}[dtype] == 1
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_results_are_compared_as_users_write_it() -> None:
    x = op.tensor(torch.ones(3))
    assert x.dtype == torch.float32
    assert x.dtype == "fp32"
    assert x.dtype == "torch.float32"
    assert x.dtype == numpy.float32
    assert x.dtype == numpy.dtype("float32")
    assert x.dtype in (torch.float16, torch.float32)
    for other in ("fp16", "no dtype", "", torch.float64, torch.int8, numpy.int64, numpy.dtype(">f4"), 3, None, int, x):
        assert x.dtype != other or other is x
    assert dtypes.int64 == torch.long

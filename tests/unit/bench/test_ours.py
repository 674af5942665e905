"""Tessera as a contender computes every case, into fresh memory and into given memory."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from bench.cases import TOLERANCE, Case, DtypeName, Operation, error, make_inputs
from bench.micro import CALLS
from bench.ours import fresh, out
from bench.peers import Builder
from tessera import Tensor


@pytest.mark.parametrize("builder", [fresh, out])
@pytest.mark.parametrize("dtype", get_args(DtypeName))
@pytest.mark.parametrize("operation", get_args(Operation))
def test_every_case_is_right(builder: Builder, operation: Operation, dtype: DtypeName) -> None:
    problem = Case(operation, (48, 80, 64) if operation in ("matmul", "linear_gelu") else (48, 80), dtype)
    inputs = make_inputs(problem)
    with torch.no_grad():
        result = builder(problem, inputs)()
    assert isinstance(result, Tensor)
    assert error(problem, inputs, result.torch()) < TOLERANCE[dtype]


@pytest.mark.parametrize("kind", ["one", "long", "five"])
def test_small_calls_compute_what_torchs_do(kind: str) -> None:
    ours = {"one": "tessera node+eval", "long": "tessera long+eval", "five": "tessera kernel"}[kind]
    result, expected = CALLS[ours]()(), CALLS[f"torch {kind}"]()()
    assert isinstance(result, Tensor)
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(result.torch(), expected)

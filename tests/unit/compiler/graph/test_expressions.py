"""Expressions: what a structure is written as, and read again as the same object."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import Tensor, op
from tessera.compiler.graph.expressions import expression_of, structure_of
from tessera.errors import ProfileError
from tessera.lazy.node import joined
from tessera.lazy.policy import FAST, Policy

A, B = torch.randn(6, 5), torch.randn(5, 7)
IMAGE = torch.randn(1, 4, 9, 9)


def _square_and_self(x: Tensor) -> Tensor:
    return op.add(op.mul(x, x), x)


EXAMPLES: dict[str, Callable[[], Tensor]] = {
    "product": lambda: op.gelu(op.matmul(A, B) + 1.5),
    "mixed": lambda: op.softmax(op.matmul(op.cast(A, "bf16"), op.cast(B, "bf16")), axis=-1),
    "masked": lambda: op.where(op.gt(op.tensor(A), 0), A, -math.inf),
    "shared": lambda: _square_and_self(op.exp(A)),
    "strided": lambda: op.tensor(A.t()[1:]) + op.tensor(B.t())[:4, :1],
    "constant": lambda: op.matmul(A, op.constant(B)),
    "pinned": lambda: op.matmul(A, B).pin(unroll=2),
    "convolution": lambda: op.depthwise_conv2d(IMAGE, torch.randn(4, 1, 3, 3), padding=1),
    "layouts": lambda: op.concat([op.reshape(A, (5, 6)), op.transpose(op.tensor(A))], axis=0),
    "scalars": lambda: op.tensor(A) * 3,
    "transform": lambda: op.real(op.fft(A)),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("policy", [FAST, Policy("deterministic", tf32=True)])
def test_an_expression_is_read_as_the_structure_that_it_was_written_from(name: str, policy: Policy) -> None:
    structure = EXAMPLES[name]().structure
    written = json.loads(json.dumps(expression_of(structure, policy), allow_nan=False))
    found, numerics = structure_of(written)
    assert found is structure
    assert numerics == policy


def test_several_roots_are_one_expression() -> None:
    x = op.exp(A)
    structure, _ = joined([x + 1, x * x])
    assert structure_of(expression_of(structure, FAST))[0] is structure


def damaged(change: Callable[[dict[str, Any]], object]) -> object:
    written = copy.deepcopy(expression_of(op.matmul(A, B).structure, FAST))
    result = change(written)
    return written if result is None else result


@pytest.mark.parametrize(
    "change",
    [
        lambda e: 3,
        lambda e: {},
        lambda e: e.update(nodes=[]),
        lambda e: e.update(policy={"mode": "sloppy"}),
        lambda e: e["nodes"].append(["module", "os"]),
        lambda e: e["nodes"].append(["node", "no_such_operator", [], [0], [0]]),
        lambda e: e["nodes"].append(["node", "matmul", [None, None], [0, 9], [0, 1]]),
        lambda e: e["nodes"].append(["node", "matmul", [None, None], [0, -1], [0, 1]]),
        lambda e: e["nodes"].append(["node", "matmul", [None, None], [0, 0], [0, 1]]),
        lambda e: e["nodes"].append(["node", "matmul", [None], [0, 1], [0, 1]]),
        lambda e: e["nodes"].append(["node", "matmul", [None, None], [0, 1], [0, [1, 2]]]),
        lambda e: e["nodes"].append(["buffer", "fp32", [2, -3], [1, 1], "cpu", False]),
        lambda e: e["nodes"].append(["buffer", "fp31", [2, 3], [3, 1], "cpu", False]),
        lambda e: e["nodes"].append(["buffer", "fp32", [2, "3"], [3, 1], "cpu", False]),
    ],
)
def test_what_is_no_expression_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        structure_of(damaged(change))

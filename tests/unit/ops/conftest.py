"""Tests of this folder evaluate with the reference evaluator: they are about the algebra, not about compiled code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tessera.handle  # noqa: F401  (makes `Tensor` the class of nodes)
from tessera.lazy import evaluation
from tessera.lazy.structures import interning
from tessera.ops import oracle


@pytest.fixture(autouse=True)
def reference_evaluator() -> Iterator[None]:
    """Evaluates by the operators' references for the duration of a test."""
    # Plans that other tests made would run compiled code.
    interning.forget_structures(keep_plans=False)
    previous = evaluation.set_evaluator(oracle.evaluate)
    yield
    evaluation.set_evaluator(previous)

"""Attention that users write out of products and a softmax: recognized where that is right, and computed as written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera import numerics, op
from tessera.compiler import pipeline, planning
from tessera.compiler.graph import programs
from tessera.handle import Tensor
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.ops import oracle
from tessera.rewrite.rules.idioms import IDIOMS
from tests.whole import examples

INFINITY = math.inf
Scores = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def always_taken() -> Iterator[None]:
    """What pays on tiny operands is no matter here."""
    with patch.object(programs, "cheaper", lambda program, *_: program):
        pipeline.forget_plans()
        yield


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def rules(tensor: Tensor) -> list[str]:
    """Names of the idioms in the program that a tensor is computed by."""
    program = planning.program_of(tensor.structure)
    return [firing.rule for firing in program.log if firing.rule in IDIOMS]


def kernels(tensor: Tensor) -> list[str]:
    return [line.split('"')[1] for line in tensor.inspect("schedule").splitlines() if "sym_name = " in line]


def check(result: Tensor, tolerance: float = 4e-6) -> torch.Tensor:
    """The result, which is what the float64 reference of the algebra says."""
    expected = oracle.reference(result)
    computed = result.torch()
    torch.testing.assert_close(computed.double(), expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    return computed


def turned(x: Any) -> Tensor:
    """The last two dimensions exchanged."""
    rank = len(x.shape)
    return op.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def attention(q: Any, k: Any, v: Any, scores: Scores = lambda s: s) -> Tensor:
    return op.matmul(op.softmax(scores(op.matmul(q, turned(k)))), v)


BIAS = normal(9, 13, seed=3)
SEEN = torch.ones(9, 13, dtype=torch.bool).tril(4)
WRITTEN: dict[str, Scores] = {
    "plain": lambda s: s,
    "multiplied": lambda s: s * 0.3,
    "divided": lambda s: s / math.sqrt(8.0),
    "negative": lambda s: -0.7 * s,
    "by a tensor": lambda s: s * torch.tensor(0.3),
    "literal": lambda s: s * 0.5,
    "added": lambda s: s * 0.3 + BIAS,
    "added first": lambda s: (BIAS + s) / 3.0,
    "subtracted": lambda s: s - BIAS[:1],
    "hidden": lambda s: op.where(SEEN, s * 0.3, -INFINITY),
    "hidden first": lambda s: op.where(~SEEN, -INFINITY, s) * 0.3,
    "lowest number": lambda s: op.where(SEEN, s, torch.finfo(torch.float32).min),
    "large number": lambda s: op.where(SEEN, s, -1e9) / 2.0,
    "hidden and added": lambda s: op.where(SEEN, s * 0.3 + BIAS, -INFINITY),
    "hidden twice": lambda s: op.where(SEEN, op.where(SEEN[:, :1], s, -INFINITY), -INFINITY),
    "written softmax": lambda s: s * 0.25,
    "in fp64": lambda s: op.cast(op.cast(s, "fp64") * 0.3, "fp32"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_attention_is_recognized_wherever_scale_and_mask_stand(name: str) -> None:
    q, k, v = normal(2, 3, 9, 8), normal(2, 3, 13, 8), normal(2, 3, 13, 5)
    result = attention(q, k, v, WRITTEN[name])
    assert rules(result) == ["recognize-attention"]
    check(result)


def test_keys_may_be_given_as_they_are_multiplied_and_scaled_beforehand() -> None:
    q, k, v = normal(3, 9, 8), normal(3, 8, 13), normal(3, 13, 5)
    for result in (
        op.matmul(op.softmax(op.matmul(q * op.tensor(0.3), k)), v),
        op.matmul(op.softmax(op.matmul(q, op.tensor(k) * 0.3)), v),
        op.matmul(op.softmax(op.matmul(q, op.tensor(k) / 2.5) * 0.5), v),
    ):
        assert rules(result) == ["recognize-attention"]
        check(result)


def test_a_softmax_written_out_is_recognized_first() -> None:
    q, k, v = normal(9, 8), normal(13, 8), normal(13, 5)
    scores = op.matmul(q, k.T) * 0.3
    weights = op.exp(scores - op.max(scores, -1, True))
    result = op.matmul(weights / op.sum(weights, -1, True), v)
    assert rules(result) == ["recognize-attention"]
    check(result)


@pytest.mark.parametrize("wide", [False, True])
def test_casts_around_the_softmax_change_nothing(wide: bool) -> None:
    q, k, v = (normal(2, 17, 16, dtype=torch.bfloat16, seed=seed) for seed in range(3))
    first, second = (op.cast(x, "fp32") if wide else op.tensor(x) for x in (q, k))
    scores = op.cast(op.matmul(first, turned(second)), "fp32") * 0.25
    result = op.matmul(op.cast(op.softmax(scores), "bf16"), v)
    assert rules(result) == ["recognize-attention"]
    check(result, 2e-2)


def test_repeated_heads_are_shared_and_no_copy_is_left() -> None:
    q, k, v = normal(2, 6, 9, 8), op.tensor(normal(2, 2, 13, 8)) * 1.5, op.tensor(normal(2, 2, 13, 8)) * 1.5
    wide = [
        op.reshape(op.broadcast_to(op.reshape(x, (2, 2, 1, 13, 8)), (2, 2, 3, 13, 8)), (2, 6, 13, 8)) for x in (k, v)
    ]
    result = attention(q, wide[0], wide[1], WRITTEN["multiplied"])
    assert rules(result) == ["recognize-attention", "share-heads"]
    assert sum("flash" in name for name in kernels(result)) == 1
    check(result)


@pytest.mark.parametrize("mask", [(9, 13), (1, 1, 9, 13), (2, 6, 1, 13), (2, 1, 9, 13)])
def test_masks_go_with_shared_heads(mask: tuple[int, ...]) -> None:
    q, k = normal(2, 6, 9, 8), op.tensor(normal(2, 2, 13, 8)) * 1.5
    wide = op.reshape(op.broadcast_to(op.reshape(k, (2, 2, 1, 13, 8)), (2, 2, 3, 13, 8)), (2, 6, 13, 8))
    result = attention(q, wide, wide, lambda s: s + normal(*mask))
    assert rules(result) == ["recognize-attention", "share-heads"]
    check(result)


def test_a_reshape_that_does_not_merge_heads_is_left_alone() -> None:
    """The form is that of repeated heads; the extents are not."""
    q, k = normal(6, 8, 4), op.broadcast_to(op.tensor(normal(2, 1, 24, 4)) * 1.5, (2, 4, 24, 4))
    other = op.reshape(k, (6, 32, 4))
    result = attention(q, other, other)
    assert rules(result) == ["recognize-attention"]
    check(result)


def test_what_is_used_elsewhere_is_made() -> None:
    q, k, v = normal(9, 8), normal(13, 8), normal(13, 5)
    weights = op.softmax(op.matmul(q, k.T))
    assert rules(op.matmul(weights, v) * op.sum(weights)) == []
    assert rules(op.matmul(op.softmax(op.matmul(q, k.T), 0), v)) == []
    assert rules(op.matmul(op.softmax(op.cumsum(op.matmul(q, k.T), -1)), v)) == []
    assert rules(op.matmul(op.softmax(op.matmul(q, k.T, tile_shape=(64, 64, 64))), v)) == []


@pytest.mark.parametrize("changed", [op.tanh, lambda s: op.where(SEEN, s, -10.0)], ids=["tanh", "low scores"])
def test_what_is_done_to_each_score_is_done_by_attention(changed: Callable[[Tensor], Tensor]) -> None:
    q, k, v = normal(9, 8), normal(13, 8), normal(13, 5)
    result = op.matmul(op.softmax(changed(op.matmul(q, k.T))), v)
    assert rules(result) == ["recognize-attention"]
    check(result)


def test_a_mask_that_widens_the_scores_is_none_of_attentions() -> None:
    q, k, v = normal(9, 8), normal(13, 8), normal(4, 13, 5)
    result = attention(q, k, v, lambda s: s + normal(4, 9, 13))
    assert rules(result) == []
    check(result)


def test_a_row_without_keys_is_no_number_under_a_strict_policy_and_zero_otherwise() -> None:
    q, k, v = normal(9, 8), normal(13, 8), normal(13, 5)
    seen = SEEN.clone()
    seen[4] = False
    result = attention(q, k, v, lambda s: op.where(seen, s, -INFINITY))
    again = Tensor(result.state)
    with numerics.policy("strict"):
        assert rules(again) == []
        assert bool(check(again)[4].isnan().all())
    computed = result.torch()
    assert bool((computed[4] == 0).all())
    expected = oracle.reference(attention(q, k, v, lambda s: op.where(seen, s, -INFINITY)))
    rest = [row for row in range(9) if row != 4]
    torch.testing.assert_close(computed[rest].double(), expected[rest], atol=4e-6, rtol=4e-6)


def test_a_row_hidden_by_a_finite_number_has_equal_weights() -> None:
    q, k, v = normal(9, 8), normal(13, 8), normal(13, 5)
    seen = SEEN.clone()
    seen[4] = False
    result = attention(q, k, v, lambda s: op.where(seen, s, -1e9))
    assert rules(result) == ["recognize-attention"]
    torch.testing.assert_close(check(result)[4], v.mean(0), atol=1e-5, rtol=1e-5)


def test_nan_in_a_query_stays_in_its_row() -> None:
    q, k, v = normal(9, 8), normal(13, 8), normal(13, 5)
    q[2, 3] = math.nan
    result = check(attention(q, k, v, WRITTEN["hidden"]))
    assert result.isnan().any(-1).tolist() == [row == 2 for row in range(9)]


def test_one_form_serves_extents_that_meet_its_guards_and_extents_that_do_not() -> None:
    def result(lead: tuple[int, int, int], heads: int, keys: int) -> Tensor:
        k = op.broadcast_to(op.tensor(normal(lead[0], 1, lead[2], 4)) * 1.5, (*lead, 4))
        wide = op.reshape(k, (heads, keys, 4))
        return attention(normal(heads, 7, 4), wide, wide)

    merged, scrambled = result((2, 3, 8), 6, 8), result((2, 4, 24), 6, 32)
    assert symbolic_form(merged.structure) is symbolic_form(scrambled.structure)
    assert rules(merged) == ["recognize-attention", "share-heads"]
    assert rules(scrambled) == ["recognize-attention"]
    check(merged)
    check(scrambled)


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("keys_first", [True, False])
def test_a_comparison_of_positions_is_a_causal_mask(shown: bool, keys_first: bool) -> None:
    query, key = op.reshape(op.arange(70), (70, 1)), op.arange(70)
    if shown:
        mask = op.le(key, query) if keys_first else op.ge(query, key)
    else:
        mask = op.gt(key, query) if keys_first else op.lt(query, key)
    q, k, v = normal(2, 70, 8), normal(2, 70, 8), normal(2, 70, 5)
    branches = (lambda s: (s, -INFINITY)) if shown else (lambda s: (-INFINITY, s))
    result = attention(q, k, v, lambda s: op.where(mask, *branches(s * 0.3)))
    assert rules(result) == ["recognize-attention", "hide-future"]
    assert all("iota" not in name for name in kernels(result))
    check(result)


def test_other_comparisons_of_positions_stay_masks() -> None:
    q, k, v = normal(9, 8), normal(13, 8), normal(13, 5)
    query, key = op.reshape(op.arange(9), (9, 1)), op.arange(13)
    for mask in (op.ge(query, key), op.gt(query, key - 1), op.ge(query * 2, key), op.le(query, key)):
        result = attention(q, k, v, lambda s, mask=mask: op.where(mask, s, -INFINITY))  # type: ignore[misc]
        assert rules(result) == ["recognize-attention"]
        check(result)


EXTENTS = st.sampled_from((1, 2, 3, 7, 16, 33))


@settings(max_examples=examples(20, 40), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_drawn_attention_is_what_its_operators_say(data: st.DataObject) -> None:
    batch, heads, queries, keys, size, values = (data.draw(EXTENTS) for _ in range(6))
    lead = data.draw(st.sampled_from(((), (heads,), (min(batch, 3), heads))))
    seed = data.draw(st.integers(0, 1 << 16))
    q, k = normal(*lead, queries, size, seed=seed), normal(*lead, keys, size, seed=seed + 1)
    v = normal(*lead, keys, values, seed=seed + 2)
    scores = op.matmul(q, turned(k))
    for _ in range(data.draw(st.integers(0, 3))):
        scores = data.draw(st.sampled_from(_STEPS))(scores, seed)
    check(op.matmul(op.softmax(scores), v), 2e-5)


def _seen(scores: Tensor, seed: int) -> torch.Tensor:
    """A mask that hides no row."""
    mask = normal(*scores.shape[-2:], seed=seed) > 0
    mask[:, 0] = True
    return mask


_STEPS: tuple[Callable[[Tensor, int], Tensor], ...] = (
    lambda s, seed: s * 0.37,
    lambda s, seed: s / 3.0,
    lambda s, seed: s + normal(*s.shape, seed=seed),
    lambda s, seed: s - normal(s.shape[-1], seed=seed),
    lambda s, seed: op.where(_seen(s, seed), s, -INFINITY),
    lambda s, seed: op.where(_seen(s, 0), s, -1e9),
)


def test_the_model_may_prefer_the_products() -> None:
    with patch.object(programs, "cheaper", lambda program, plain, *_: plain):
        result = attention(normal(9, 8), normal(11, 8), normal(11, 5))
        assert rules(result) == []
        check(result)


def test_the_interpreters_device_recognizes_it_too() -> None:
    q, k, v = (op.tensor(normal(2, 16, 16, seed=seed), device="interpreter") for seed in range(3))
    result = op.matmul(op.softmax(op.matmul(q, turned(k)) * 0.25), v)
    assert rules(result) == ["recognize-attention"]
    first, second, third = (normal(2, 16, 16, seed=seed) for seed in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(first, second, third)
    torch.testing.assert_close(result.torch(), expected, atol=1e-5, rtol=1e-5)

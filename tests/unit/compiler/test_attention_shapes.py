"""`op.flash_attention` on CPUs over drawn shapes, layouts and dtypes, and at the edges of what floats hold."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op, profile
from tessera.compiler.explain.inspection import choices_of, schedules_of
from tessera.ops import oracle
from tests.threads import torch_threads
from tests.whole import examples, some

HEADS = st.sampled_from(((1, 1), (3, 1), (4, 2), (6, 6)))
LENGTHS = st.tuples(st.sampled_from((1, 2, 7, 33, 70)), st.sampled_from((1, 3, 40, 129, 300)))
SIZES = st.sampled_from(((1, 1), (3, 17), (17, 3), (64, 64), (80, 80), (96, 64), (257, 8)))
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def laid_out(
    batch: int, heads: int, length: int, size: int, dtype: torch.dtype, layout: str, seed: int
) -> torch.Tensor:
    """[batch, heads, length, size], in memory in another order, or with steps between the elements of a head."""
    if layout == "heads inside":
        return normal(batch, length, heads, size, dtype=dtype, seed=seed).transpose(1, 2)
    if layout == "columns":
        return normal(batch, heads, size, length, dtype=dtype, seed=seed).mT
    if layout == "steps":
        return normal(batch, heads, length, 2 * size, dtype=dtype, seed=seed)[..., ::2]
    return normal(batch, heads, length, size, dtype=dtype, seed=seed)


@settings(max_examples=examples(10, 20))
@given(
    HEADS,
    LENGTHS,
    SIZES,
    st.sampled_from(tuple(TOLERANCE)),
    st.booleans(),
    st.sampled_from((None, "keys", "pairs", "added")),
    st.sampled_from(("plain", "heads inside", "columns", "steps")),
)
def test_any_shape_and_layout_gives_the_weighted_mean(
    heads: tuple[int, int],
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    dtype: torch.dtype,
    causal: bool,
    mask: str | None,
    layout: str,
) -> None:
    (queries, keys), (head, value_head) = lengths, sizes
    q = laid_out(2, heads[0], queries, head, dtype, layout, 0)
    k = laid_out(2, heads[1], keys, head, dtype, layout, 1)
    v = laid_out(2, heads[1], keys, value_head, dtype, layout, 2)
    drawn = normal(2, 1, 1, keys) if mask == "keys" else normal(queries, keys)
    chosen = None if mask is None else drawn if mask == "added" else drawn > -0.5
    result = op.flash_attention(q, k, v, causal=causal, mask=chosen)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(result.torch().double(), oracle.reference(result), atol=tolerance, rtol=tolerance)
    assert len(choices_of(result.structure)) == 1  # nothing is copied


@pytest.mark.parametrize("lanes", ["queries", "head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_scores_and_hidden_rows_stay_finite(lanes: str, dtype: torch.dtype) -> None:
    q, k, v = normal(2, 20, 8, dtype=dtype) * 1e6, normal(2, 70, 8, dtype=dtype) * 1e6, normal(2, 70, 8, dtype=dtype)
    seen = torch.ones(20, 70, dtype=torch.bool)
    seen[3], seen[5, :64], seen[6, 64:] = False, False, False
    micro = (4, 16) if lanes == "queries" else (2, 4)
    for mask in (seen, torch.zeros(20, 70).masked_fill(~seen, -math.inf)):
        result = op.flash_attention(q, k, v, mask=mask).pin(lanes=lanes, micro=micro).torch()
        assert result.isfinite().all()
        assert (result[:, 3] == 0).all()
        expected = oracle.reference(op.flash_attention(q.float(), k.float(), v.float(), mask=mask))
        torch.testing.assert_close(result.double(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("queries", [1, 40])
def test_denormal_weights_and_operands_do_no_harm(queries: int) -> None:
    q, k, v = normal(queries, 16) * 1e-40, normal(50, 16), normal(50, 16)
    k[7] = 1e-41
    k[8:] *= 30
    for scale in (1.0, 1e36):
        result = op.flash_attention(q, k, v, scale=scale)
        torch.testing.assert_close(result.torch().double(), oracle.reference(result), atol=1e-5, rtol=1e-5)


def test_no_keys_no_queries_and_no_head_size() -> None:
    assert (op.flash_attention(normal(2, 1, 8), normal(2, 0, 8), normal(2, 0, 5)).torch() == torch.zeros(2, 1, 5)).all()
    assert op.flash_attention(normal(2, 0, 8), normal(2, 9, 8), normal(2, 9, 5)).torch().shape == (2, 0, 5)
    v = normal(2, 9, 5)
    mean = op.flash_attention(normal(2, 3, 0), normal(2, 9, 0), v, scale=1.0).torch()
    torch.testing.assert_close(mean, v.mean(1, keepdim=True).expand(2, 3, 5), atol=1e-6, rtol=1e-6)


def test_one_query_of_heads_that_share_keys_is_one_block() -> None:
    """Keys are read once for all the heads that share them, and a causal mask hides none of them."""
    q, k, v = normal(2, 12, 1, 64), normal(2, 3, 300, 64), normal(2, 3, 300, 64)
    mask = normal(2, 12, 1, 300)
    result = op.flash_attention(q, k, v, causal=True, mask=mask)
    assert schedules_of(result.structure)[0]["lanes"] == "head"
    assert schedules_of(result.structure)[0].integers("micro")[1] == 4
    torch.testing.assert_close(result.torch().double(), oracle.reference(result), atol=4e-6, rtol=4e-6)


def test_pairs_of_bf16_err_no_more_than_torch() -> None:
    q, k, v = (normal(1, 4, 200, 64, dtype=torch.bfloat16, seed=seed) for seed in range(3))
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    ours = op.flash_attention(q, k, v).torch()
    assert (ours - exact).abs().mean() <= 1.05 * (theirs - exact).abs().mean()


# -- keys in parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "dtype"),
    some(
        product(
            ((1, 700, 1, 1), (1, 520, 6, 3), (3, 1111, 2, 2), (7, 600, 1, 1)),
            (torch.float32, torch.bfloat16, torch.float64),
        ),
        lambda case: case[0],
    ),
)
def test_parts_of_keys_are_joined(lengths: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    queries, keys, heads, shared = lengths
    q = normal(2, heads, queries, 40, dtype=dtype)
    k, v = normal(2, shared, keys, 40, dtype=dtype), normal(2, shared, keys, 24, dtype=dtype, seed=1)
    mask = normal(queries, keys) > -1
    mask[:, keys // 4 : keys // 2] = False  # a part that nobody sees
    result = op.flash_attention(q, k, v, causal=True, mask=mask).pin(lanes="head", micro=(2, 2), parts=4)
    expected = oracle.reference(result)
    assert [choice.subject.item.name.rsplit("_", 1)[1] for choice in choices_of(result.structure)] == [
        "parts",
        "joined",
    ]
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(result.torch().double(), expected, atol=tolerance, rtol=tolerance)


def test_a_query_hidden_from_all_parts_gives_zeros_and_nan_stays_in_its_row() -> None:
    q, k, v = normal(4, 8), normal(600, 8), normal(600, 8)
    q[2, 1] = math.nan
    mask = torch.ones(4, 600, dtype=torch.bool)
    mask[1] = False
    result = op.flash_attention(q, k, v, mask=mask).pin(lanes="head", micro=(2, 4), parts=4).torch()
    assert (result[1] == 0).all()
    assert result[2].isnan().all()
    assert result[[0, 3]].isfinite().all()


def test_a_result_with_heads_inside_is_written_by_the_kernel_that_joins() -> None:
    q, k, v = normal(2, 3, 2, 16), normal(2, 3, 600, 16), normal(2, 3, 600, 16)
    result = op.flash_attention(q, k, v).pin(lanes="head", micro=(2, 2), parts=4)
    inside = op.reshape(op.transpose(result, (0, 2, 1, 3)), (2, 2, 48))
    expected = oracle.reference(inside)
    assert len(choices_of(inside.structure)) == 2
    torch.testing.assert_close(inside.torch().double(), expected, atol=1e-5, rtol=1e-5)


def test_keys_are_cut_for_workers_that_would_have_nothing_to_do() -> None:
    q, k = normal(1, 1, 64), normal(1, 40_000, 64)
    with torch_threads(2), profile.session() as session:
        result = op.flash_attention(q, k, k)
        expected = oracle.reference(result)
        kernels = choices_of(result.structure)
        values = result.torch()
    assert [kernel.schedule.get("lanes") for kernel in kernels] == ["head", None]
    torch.testing.assert_close(values.double(), expected, atol=1e-5, rtol=1e-5)
    records = [record for record in session.records() if record.operator == "flash_attention"]
    assert [record.flops for record in records] == [2 * 40_000 * 128]

"""`op.flash_attention` on CPUs: what it computes, what it refuses, and what its kernels read in place."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch

import tessera
from tessera import autotune, numerics, op, profile
from tessera.compiler.device import compilers
from tessera.compiler.explain.inspection import choices_of, schedules_of
from tessera.compiler.tune.problems import tuning_problem
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.ops import oracle
from tessera.ops.attention.records import visible_pairs
from tessera.scheduling.families.attention.space import AttentionProblem, space
from tessera.typing import ArrayLike
from tests.threads import torch_threads
from tests.whole import some

INFINITY = math.inf


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def check(result: tessera.Tensor, tolerance: float = 4e-6) -> torch.Tensor:
    """The result, which is what the float64 reference says."""
    expected = oracle.reference(result)
    computed = result.torch()
    torch.testing.assert_close(computed.double(), expected, atol=tolerance, rtol=tolerance)
    return computed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (3, 150), (150, 3), (1, 257)])
def test_it_is_torchs_attention(queries: int, keys: int, causal: bool) -> None:
    q, k, v = normal(2, 4, queries, 32), normal(2, 4, keys, 32), normal(2, 4, keys, 32)
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if causal else None
    seen = slice(max(queries - keys, 0), None) if causal else slice(None)  # torch has no value for the others
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask)
    result = op.flash_attention(q, k, v, causal=causal).torch()
    torch.testing.assert_close(result[..., seen, :].double(), expected[..., seen, :], atol=4e-6, rtol=4e-6)
    assert (result[..., : seen.start or 0, :] == 0).all()


def test_heads_share_keys_and_values() -> None:
    q, k, v = normal(2, 6, 33, 16), normal(2, 2, 40, 16, seed=1), normal(2, 2, 40, 24)
    repeated = [x.repeat_interleave(3, 1) for x in (k, v)]
    grouped = check(op.flash_attention(q, k, v, causal=True))
    torch.testing.assert_close(grouped, op.flash_attention(q, *repeated, causal=True).torch(), atol=2e-6, rtol=2e-6)


def test_one_head_of_keys_may_have_no_dimension_for_it() -> None:
    q, k, v = normal(4, 9, 8), normal(12, 8), normal(12, 8)
    assert check(op.flash_attention(q, k, v)).shape == (4, 9, 8)


def test_batch_dimensions_broadcast() -> None:
    q, k, v = normal(3, 1, 2, 9, 8), normal(5, 2, 12, 8), normal(1, 2, 12, 4)
    assert check(op.flash_attention(q, k, v)).shape == (3, 5, 2, 9, 4)


@pytest.mark.parametrize("shape", [(2, 3, 17, 40), (1, 3, 1, 40), (17, 40), (40,), (17, 1), (2, 1, 17, 1)])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks_broadcast(shape: tuple[int, ...], boolean: bool) -> None:
    q, k, v, mask = normal(2, 3, 17, 8), normal(2, 3, 40, 8), normal(2, 3, 40, 8), normal(*shape)
    check(op.flash_attention(q, k, v, mask=mask > -0.4 if boolean else mask))


def test_a_mask_that_is_computed_is_read_from_memory() -> None:
    q, k, v, x = normal(5, 8), normal(7, 8), normal(7, 8), op.tensor(normal(5, 1))
    check(op.flash_attention(q, k, v, mask=x * 2 + 1))


def test_a_query_without_any_key_gives_zeros() -> None:
    q, k, v = normal(5, 8), normal(7, 8), normal(7, 8)
    hidden = torch.ones(5, 7, dtype=torch.bool)
    hidden[2] = False
    assert (check(op.flash_attention(q, k, v, mask=hidden))[2] == 0).all()
    lowest = torch.zeros(5, 7).masked_fill(~hidden, -INFINITY)
    assert (check(op.flash_attention(q, k, v, mask=lowest))[2] == 0).all()
    assert (op.flash_attention(q, normal(0, 8), normal(0, 3)).torch() == torch.zeros(5, 3)).all()


def test_what_is_no_number_in_a_query_stays_there() -> None:
    q, k, v = normal(70, 8), normal(90, 8), normal(90, 8)
    q[33, 2], q[34, 1] = math.nan, INFINITY
    result = op.flash_attention(q, k, v).torch()
    assert result[33:35].isnan().all()
    assert result[:33].isfinite().all()
    assert result[35:].isfinite().all()
    v[5, 3] = INFINITY
    assert (op.flash_attention(normal(4, 8), k, v).torch()[:, 3] == INFINITY).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    q, k, v = (normal(2, 50, 40, dtype=dtype, seed=seed) for seed in range(3))
    result = op.flash_attention(q, k, v, causal=True)
    assert result.dtype.torch is dtype
    check(result, 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("scale", [0.0, 3.0, -0.4, 1e-40])
def test_scales(scale: float) -> None:
    q, k, v = normal(20, 8), normal(30, 8), normal(30, 8)
    check(op.flash_attention(q, k, v, scale=scale, causal=True), 1e-5)
    check(op.flash_attention(q, k, v, scale=op.tensor(torch.tensor(scale))), 1e-5)  # type: ignore[arg-type]


def test_no_scale_and_no_length_has_code_of_its_own() -> None:
    q, k, v = normal(2, 40, 24), normal(2, 70, 24), normal(2, 70, 24)
    first = op.flash_attention(q, k, v)
    others = [op.flash_attention(q[:, :33], k[:, :69], v[:, :69], scale=scale) for scale in (0.3, 1.0, 0.5)]
    compiler = compilers.kernel_compiler()
    codes = {compiler.planner.kernel(choices_of(x.structure)[0]).code for x in (first, *others)}
    assert len(codes) == 1


def test_views_are_read_in_place() -> None:
    fused = normal(2, 40, 3, 4, 16)  # batch, length, (Q, K, V), heads, head size
    q, k, v = (fused[:, :, part].transpose(1, 2) for part in range(3))
    result = op.flash_attention(q, k, v, causal=True)
    assert len(choices_of(result.structure)) == 1
    check(result)
    columns = normal(4, 16, 40).mT
    stepped = normal(4, 40, 32)[..., ::2]
    other = op.flash_attention(columns, stepped, columns)
    assert len(choices_of(other.structure)) == 1
    check(other)


def test_casts_and_maps_around_it_are_kernels_of_their_own() -> None:
    q, k, v = (op.tensor(normal(2, 20, 8, seed=seed)) for seed in range(3))
    result = op.relu(op.flash_attention(q * 2, k.to("fp32"), v).to("bf16"))
    names = [kernel.subject.item.name.rsplit("_", 1)[0] for kernel in choices_of(result.structure)]
    assert "flash_attention" in names
    torch.testing.assert_close(result.torch().double(), oracle.reference(result), atol=2e-2, rtol=2e-2)


def test_inside_a_kernel_another_head_size_is_another_scale() -> None:
    @op.kernel
    def attend(q: ArrayLike, k: ArrayLike, v: ArrayLike) -> tessera.Tensor:
        return op.flash_attention(q, k, v)

    for size in (8, 32):
        q, k, v = normal(9, size), normal(11, size), normal(11, size)
        expected = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        torch.testing.assert_close(attend(q, k, v).torch(), expected, atol=2e-6, rtol=2e-6)


# -- schedules ----------------------------------------------------------------------------------------------------


def test_every_legal_schedule_computes_the_same() -> None:
    q, k, v = normal(3, 77, 24), normal(3, 130, 24), normal(3, 130, 40)
    result = op.flash_attention(q, k, v, causal=True)
    (launch,) = launches_of_operator(
        lambda *operands: op.flash_attention(*operands, causal=True), [q.shape, k.shape, v.shape], "fp32"
    )
    problem = launch.subject.problem(launch.call.shaped.extents, 2)
    assert isinstance(problem, AttentionProblem)
    assert space(problem).violations(launch.schedule) == ()
    draw, expected = random.Random(3), oracle.reference(result)
    for _ in range(4):
        schedule = space(problem).draw(draw)
        pinned = op.flash_attention(q, k, v, causal=True).pin(**schedule)
        assert schedules_of(pinned.structure) == [schedule]
        torch.testing.assert_close(pinned.torch().double(), expected, atol=4e-6, rtol=4e-6)


def test_a_block_need_not_be_a_multiple_of_anything() -> None:
    q, k, v = normal(3, 77, 24), normal(3, 130, 24), normal(3, 130, 40)
    pinned = op.flash_attention(q, k, v, causal=True).pin(tile=(70, 30))
    assert schedules_of(pinned.structure)[0]["tile"] == (70, 30)
    check(pinned)


def test_it_is_tuned_like_any_other_kernel() -> None:
    config = autotune(op.flash_attention, shapes=[(2, 64, 32), (2, 96, 32), (2, 96, 32)], budget_s=2.0)
    assert config.schedule.keys() >= {"tile", "micro", "lanes", "parallel"}
    plain = launches_of_operator(op.flash_attention, (2, 64, 32), "fp32")[0]
    causal = launches_of_operator(lambda q, k, v: op.flash_attention(q, k, v, causal=True), [(2, 64, 32)] * 3, "fp32")[
        0
    ]
    identities = {tuning_problem(launch.call, compilers.kernel_compiler()).identity for launch in (plain, causal)}
    assert len(identities) == 2


def test_a_fixed_order_of_sums_gives_the_same_bits_with_any_number_of_workers() -> None:
    q, k, v = normal(4, 300, 64), normal(4, 500, 64), normal(4, 500, 64)
    results = []
    with numerics.policy("deterministic"):
        for threads in (1, 2):
            with torch_threads(threads):
                results.append(op.flash_attention(q, k, v, causal=True).torch())
    assert torch.equal(*results)


# -- what reports say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 9), (9, 3), (4, 0), (0, 4), (1, 7)])
def test_pairs_that_are_seen_are_counted_exactly(queries: int, keys: int) -> None:
    seen = int(torch.ones(queries, keys).tril(keys - queries).sum())
    assert visible_pairs(queries, keys, causal=True) == seen
    assert visible_pairs(queries, keys, causal=False) == queries * keys


def test_a_session_counts_the_products_and_the_operands() -> None:
    q, k, v = normal(2, 4, 50, 16), normal(2, 2, 60, 16), normal(2, 2, 60, 8)
    with profile.session() as session:
        op.flash_attention(q, k, v, causal=True).eval()
    (record,) = session.records()
    assert record.operator == "flash_attention"
    assert record.flops == 2 * 8 * visible_pairs(50, 60, causal=True) * (16 + 8)
    assert record.bytes == 4 * (q.numel() + k.numel() + v.numel() + 2 * 4 * 50 * 8)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((8,), (4, 8), (4, 8)), r"\(8,\) fp32 and \(4, 8\) fp32 and \(4, 8\) fp32: Q, K and V are \[\.\.\., heads"),
        (((4, 8), (4, 7), (4, 8)), "head sizes 8 of Q and 7 of K differ"),
        (((4, 8), (4, 8), (5, 8)), "K has 4 keys, V has 5 values"),
        (((3, 4, 8), (2, 4, 8), (2, 4, 8)), "3 heads of Q are no multiple of 2 heads of K and V"),
        (((4, 4, 8), (2, 4, 8), (4, 4, 8)), "K has 2 heads, V has 4"),
        (((2, 4, 4, 8), (3, 4, 4, 8), (3, 4, 4, 8)), "the batch dimensions do not broadcast"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_at_the_call(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ShapeMismatchError, match=message):
        op.flash_attention(*(normal(*shape) for shape in shapes))


def test_other_operands_are_refused_at_the_call() -> None:
    q = normal(4, 8)
    with pytest.raises(ShapeMismatchError, match="the mask does not broadcast to the scores"):
        op.flash_attention(q, q, q, mask=normal(3, 4))
    with pytest.raises(DTypeError, match="Q, K and V have one floating-point dtype"):
        op.flash_attention(q, q.double(), q)
    with pytest.raises(DTypeError, match="one floating-point dtype"):
        op.flash_attention(q.int(), q.int(), q.int())
    with pytest.raises(DTypeError, match="a mask is of bool or of a floating-point dtype"):
        op.flash_attention(q, q, q, mask=torch.ones(4, 4, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="scale='1'"):
        op.flash_attention(q, q, q, scale="1")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="causal=1"):
        op.flash_attention(q, q, q, causal=1)  # type: ignore[arg-type]


def _future(queries: int, keys: int) -> torch.Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def _window(queries: int, keys: int) -> torch.Tensor:
    distance = torch.arange(keys)[None] - torch.arange(queries)[:, None]
    return (distance <= 0) & (distance > -70)


def _padding(queries: int, keys: int) -> torch.Tensor:
    return (torch.arange(keys) < keys // 3)[None]


def _holes(queries: int, keys: int) -> torch.Tensor:
    seen = torch.zeros(queries, keys, dtype=torch.bool)
    seen[::3, 65:66] = True
    seen[1::7, -1:] = True
    return seen


@pytest.mark.parametrize("pattern", [_future, _window, _padding, _holes])
@pytest.mark.parametrize(
    ("queries", "keys", "boolean"),
    some([(*lengths, boolean) for boolean in (True, False) for lengths in ((130, 200), (65, 64), (200, 129))]),
)
def test_blocks_that_a_mask_hides_are_left_out(
    pattern: Callable[[int, int], torch.Tensor], queries: int, keys: int, boolean: bool
) -> None:
    q, k, v = normal(2, 2, queries, 16), normal(2, 2, keys, 16), normal(2, 2, keys, 16)
    seen = pattern(queries, keys)
    check(op.flash_attention(q, k, v, mask=seen if boolean else torch.where(seen, 0.5, -INFINITY)), 1e-5)


def test_keys_behind_a_mask_may_be_anything_finite_or_not() -> None:
    q, k, v = normal(70, 16), normal(200, 16), normal(200, 16)
    seen = _padding(70, 200)
    expected = op.flash_attention(q, k[:66], v[:66]).torch()
    k[66:] = math.nan
    torch.testing.assert_close(op.flash_attention(q, k, v, mask=seen).torch(), expected, atol=4e-6, rtol=4e-6)

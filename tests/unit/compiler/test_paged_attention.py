"""`op.paged_attention` on CPUs: pages are read where they lie, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import grad, op
from tessera.compiler.explain.inspection import schedules_of
from tessera.compiler.tune import candidates, workloads
from tessera.errors import ArgumentError, DTypeError, IndexRangeError, ShapeMismatchError
from tessera.ops import oracle

GARBAGE = (1 << 30, -7)
"""Entries of a table that name no page."""


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def paged(table: list[list[int]], lengths: list[int], page: int, pages: int, **sizes: int) -> dict[str, Any]:
    """Operands of attention to a pool, in which what no sequence has is not a number."""
    heads, shared, queries = sizes.get("heads", 4), sizes.get("shared", 2), sizes.get("queries", 1)
    k, v = normal(pages, shared, page, 16), normal(pages, shared, page, 24)
    kept = torch.zeros(pages, page, dtype=torch.bool)
    for row, length in zip(table, lengths, strict=True):
        for key in range(length):
            kept[row[key // page], key % page] = True
    for x in (k, v):
        x[~kept[:, None].expand(-1, shared, -1)] = torch.nan
    return {
        "q": normal(len(table), heads, queries, 16),
        "key_pages": k,
        "value_pages": v,
        "block_table": torch.tensor(table, dtype=torch.int32),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
    }


def gathered(q: Any, key_pages: Any, value_pages: Any, block_table: Any, lengths: Any, window: int = 0) -> torch.Tensor:
    """The same by torch, of copies of each sequence's keys and values; causal."""
    results, page, queries = [], key_pages.shape[2], q.shape[2]
    for number, length in enumerate(lengths.tolist()):
        row = block_table[number, : -(-length // page)].long()
        k, v = (
            x[row].transpose(0, 1).flatten(1, 2)[:, :length].repeat_interleave(q.shape[1] // x.shape[1], 0)
            for x in (key_pages, value_pages)
        )
        own, at = torch.arange(queries)[:, None] + length - queries, torch.arange(length)
        seen = (at <= own) & (at > own - (window or length + 1))
        found = torch.nn.functional.scaled_dot_product_attention(q[number], k, v, attn_mask=seen)
        results.append(torch.where(seen.any(-1, keepdim=True), found, 0.0))
    return torch.stack(results)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("page", [16, 5])
def test_sequences_of_any_length_read_their_keys_and_nothing_else(queries: int, page: int) -> None:
    """One ends amid a page, one with a page, one is empty; two share a page."""
    bad = list(GARBAGE)
    operands = paged(
        [[3, 1, *bad], [*bad, 2, 0], [3, 0, 4, 6]], [page + 3, 0, 4 * page], page, pages=7, queries=queries
    )
    found = op.paged_attention(**operands).torch()
    torch.testing.assert_close(found, gathered(**operands), atol=2e-6, rtol=2e-6)
    assert not found[1].any()


def test_queries_may_come_without_their_dimension_and_pages_with_any_strides() -> None:
    operands = paged([[1, 0], [2, 9]], [9, 3], 8, pages=3)
    expected = gathered(**operands)
    for name in ("key_pages", "value_pages"):  # as a pool holds them that has heads inside keys
        operands[name] = operands[name].transpose(1, 2).contiguous().transpose(1, 2)
    operands["q"] = operands["q"][:, :, 0]
    torch.testing.assert_close(op.paged_attention(**operands).torch(), expected[:, :, 0], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("queries", [1, 4])
def test_a_window_and_a_cap(queries: int) -> None:
    operands = paged([[2, 0, 1], [1, 3, 9]], [17, 12], 6, pages=4, queries=queries)
    found = op.paged_attention(**operands, window=7)
    torch.testing.assert_close(found.torch(), gathered(**operands, window=7), atol=2e-6, rtol=2e-6)
    capped = op.paged_attention(**operands, window=7, soft_cap=0.5)
    torch.testing.assert_close(capped.torch().double(), oracle.reference(capped), atol=2e-6, rtol=2e-6)


def test_parts_of_the_keys_of_one_long_sequence_are_joined() -> None:
    operands = paged([[*range(1, 40), 0]], [40 * 16 - 5], 16, pages=40, heads=2)
    for window in (None, 300):
        found = op.paged_attention(**operands, window=window).pin(parts=4)
        assert len(schedules_of(found.structure)) == 2
        torch.testing.assert_close(found.torch(), gathered(**operands, window=window or 0), atol=2e-6, rtol=2e-6)


def test_gradients_go_back_into_pages() -> None:
    """A page that two sequences share gets the sum of both."""
    operands = paged([[1, 0, 99], [1, 2, 0]], [7, 12], 4, pages=4, queries=2)
    ours = [op.tensor(operands[name]) for name in ("q", "key_pages", "value_pages")]
    theirs = [x.torch().clone().requires_grad_() for x in ours]
    rest = {name: operands[name] for name in ("block_table", "lengths")}
    expected = gathered(theirs[0], theirs[1], theirs[2], **rest)
    wanted = torch.autograd.grad(expected.sum(), theirs)
    output = op.paged_attention(*ours, **rest)
    for found, want in zip(grad.vjp(output, ours), wanted, strict=True):
        torch.testing.assert_close(found.torch(), want.nan_to_num(), atol=1e-5, rtol=1e-5)


def test_keys_are_appended_in_place_and_seen_by_the_next_call() -> None:
    """What a loop of serving does."""
    operands = paged([[1, 0], [2, 3]], [9, 4], 8, pages=4)
    pools = {name: torch.nan_to_num(operands[name]) for name in ("key_pages", "value_pages")}
    operands |= pools
    for _ in range(2):
        lengths = operands["lengths"].long()
        pages = operands["block_table"].long().gather(1, (lengths // 8)[:, None])[:, 0]
        for pool in pools.values():
            pool[pages, :, lengths % 8] = normal(2, *pool.shape[1::2])
        operands["lengths"] = (lengths + 1).int()
        found = op.paged_attention(**operands).torch()
        torch.testing.assert_close(found, gathered(**operands), atol=2e-6, rtol=2e-6)


def test_candidates_of_a_tuning_read_as_many_keys_as_tables_have_room_for(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers are drawn from [-8, 8) else: at most seven keys of each sequence, and few of the pages."""
    drawn: list[list[tuple[int, int]]] = []

    def noted(call: Any, device: str) -> Any:
        found = workloads.workload_of(call, device)
        drawn.append([spec.integers for spec in found.operands if spec.dtype == "int32"])
        return found

    monkeypatch.setattr(candidates, "workload_of", noted)
    operands = list(paged([[1, 0, 99], [1, 2, 0]], [7, 12], 4, pages=40).values())

    def attention(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        return op.paged_attention(q, k, v, table, lengths)

    op.autotune(max_trials=1)(attention)(*operands).eval()
    assert drawn == [[(0, 40), (12, 13)]]


def test_what_does_not_fit_is_refused() -> None:
    operands = paged([[1, 0]], [9], 8, pages=2)
    with pytest.raises(IndexRangeError, match=r"index 2 at \(0, 1\)"):
        op.paged_attention(**{**operands, "block_table": torch.tensor([[1, 2]])}).torch()
    with pytest.raises(
        IndexRangeError, match="length 17 of sequence 0, whose row of the table names pages for 16 keys"
    ):
        op.paged_attention(**{**operands, "lengths": torch.tensor([17])}).torch()
    with pytest.raises(ShapeMismatchError, match="no multiple"):
        op.paged_attention(**{**operands, "q": normal(1, 3, 16)})
    with pytest.raises(ShapeMismatchError, match="beside a table or lengths of 2"):
        op.paged_attention(**{**operands, "lengths": torch.tensor([3, 3])})
    with pytest.raises(DTypeError, match="int32 or int64"):
        op.paged_attention(**{**operands, "lengths": torch.tensor([3.0])})
    for wrong in ({"window": 0}, {"soft_cap": -1.0}, {"soft_cap": 1e300}, {"causal": 1}):
        with pytest.raises(ArgumentError):
            op.paged_attention(**operands, **wrong)


@pytest.mark.parametrize("shape", [(0, 1, 2, 8), (2, 0, 2, 8), (2, 1, 0, 8), (2, 3, 2, 0)])
def test_nothing_at_all(shape: tuple[int, int, int, int]) -> None:
    """No sequence, no head, no page in the pool, no key of a page."""
    sequences, heads, pages, page = shape
    pool = normal(pages, heads, page, 4)
    table, lengths = torch.zeros(sequences, 2, dtype=torch.int32), torch.zeros(sequences, dtype=torch.int32)
    found = op.paged_attention(normal(sequences, heads, 4), pool, pool, table, lengths).torch()
    assert found.shape == (sequences, heads, 4)
    assert not found.any()

"""The map of who touched which bytes, against a table with a row per byte."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.lazy.leaves.sources import from_torch
from tessera.runtime.streams.hazards import joined
from tessera.runtime.streams.operations import Access, Extent, Operation, may_share
from tessera.runtime.streams.spans import SpanMap
from tessera.runtime.streams.stream import StreamCore

BASE = torch.zeros(16, 16)


def block(row: int, rows: int, column: int, columns: int) -> torch.Tensor:
    return BASE[row : row + rows, column : column + columns]


blocks = st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(0, 12), st.integers(1, 4)) | st.tuples(
    st.integers(0, 12), st.integers(1, 4), st.just(0), st.just(16)
)


def elements(view: torch.Tensor) -> set[int]:
    first = (view.data_ptr() - BASE.data_ptr()) // 4
    return {first + 16 * i + j for i in range(view.shape[0]) for j in range(view.shape[1])}


@given(blocks, blocks)
def test_blocks_of_one_matrix_share_exactly_what_they_share(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = block(*first), block(*second)
    shares = may_share(from_torch(a), from_torch(b))
    if elements(a) & elements(b):
        assert shares
    elif (first[0], first[1]) == (second[0], second[1]) or 16 in (first[3], second[3]):
        # Blocks of one band of rows, or whole rows: no guess is needed.
        assert not shares


@given(st.lists(st.tuples(blocks, st.booleans(), st.integers(0, 2)), max_size=25))
def test_conflicts_are_those_of_a_table_of_bytes(accesses: list[tuple[tuple[int, ...], bool, int]]) -> None:
    streams = [StreamCore(None, "cpu", "auto") for _ in range(3)]
    spans = SpanMap()
    writers: dict[int, Operation] = {}
    readers: dict[int, set[Operation]] = {}
    for where, writes, number in accesses:
        view = block(*where)
        operation = Operation(streams[number], "touch", None, None)
        access = Access(operation, from_torch(view))
        expected = set()
        for element in elements(view):
            if element in writers:
                expected.add(writers[element])
            if writes:
                expected |= readers.get(element, set())
        found = {earlier.operation for earlier, _ in spans.conflicts(access, writes)}
        # A later read of the same stream stands for an earlier one of the same bytes: waiting for it is enough.
        assert all(any(_covers(each, missed) for each in found) for missed in expected - found)
        spans.add(access, writes)
        operation.index = streams[number].count = streams[number].count + 1
        for element in elements(view):
            if writes:
                writers[element] = operation
                readers[element] = set()
            else:
                readers.setdefault(element, set()).add(operation)


def _covers(later: Operation, earlier: Operation) -> bool:
    return later.stream is earlier.stream and later.index > earlier.index


def test_forgetting_leaves_nothing() -> None:
    core = StreamCore(None, "cpu", "auto")
    spans = SpanMap()
    for number in range(16):
        spans.add(Access(Operation(core, "touch", None, None), from_torch(BASE[number])), number % 2 == 0)
    assert len(spans) == 16
    spans.forget(lambda access: True)
    assert len(spans) == 0


def test_an_access_that_is_repeated_is_kept_once() -> None:
    core, other = StreamCore(None, "cpu", "auto"), StreamCore(None, "cpu", "auto")
    spans = SpanMap()
    for writes in (False, True):
        for stream in (core, other, core, core):
            spans.add(Access(Operation(stream, "touch", None, None), from_torch(BASE[:, 2:5])), writes)
    last = Access(Operation(other, "touch", None, None), from_torch(BASE[:, 4:6]))
    assert [wrote for _, wrote in spans.conflicts(last, True)] == [True, True, False, False]


def test_a_read_in_many_pieces_is_joined_by_a_write_of_all() -> None:
    core = StreamCore(None, "cpu", "auto")
    spans = SpanMap()
    for number in range(16):
        spans.add(Access(Operation(core, "touch", None, None), from_torch(BASE[number])), writes=False)
    spans.add(Access(Operation(core, "fill", None, None), from_torch(BASE)), writes=True)
    assert len(spans) == 1


def test_elements_of_no_regular_pattern_are_one_span() -> None:
    odd = Extent(from_torch(torch.zeros(200).as_strided((3, 3, 3), (70, 9, 2))))
    assert odd.is_dense
    assert odd.high - odd.low == 4 * (2 * 70 + 2 * 9 + 2 * 2 + 1)


def test_a_clock_that_says_nothing_new_is_not_copied() -> None:
    first = {1: 5, 2: 3}
    assert joined(first, {1: 4}) is first
    assert joined(first, {1: 6, 3: 1}) == {1: 6, 2: 3, 3: 1}
    assert first == {1: 5, 2: 3}

"""Who touches which bytes: a map from disjoint ranges of addresses to the operations that read and wrote them last.

Looking a range up costs O(log n) and a step per segment met. Operations that are done are dropped by `forget`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from tessera.runtime.streams.operations import Access


class WrittenSpan:
    """Bytes from `low` to `high`: what wrote them last (several where writes have gaps), and what read them since."""

    __slots__ = ("high", "low", "readers", "writers")

    def __init__(self, low: int, high: int, writers: list[Access], readers: list[Access]) -> None:
        self.low, self.high, self.writers, self.readers = low, high, writers, readers


class SpanMap:
    """Segments in the order of their addresses, disjoint."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._segments: list[WrittenSpan] = []

    def __len__(self) -> int:
        return len(self._segments)

    def conflicts(self, access: Access, writes: bool) -> Iterator[tuple[Access, bool]]:
        """Earlier accesses that meet this one where one of the two writes: (the access, whether it wrote).

        One that lies in several segments comes several times.
        """
        for segment in self._met(access.low, access.high):
            for earlier in segment.writers:
                if earlier.meets(access):
                    yield earlier, True
            if writes:
                for earlier in segment.readers:
                    if earlier.meets(access):
                        yield earlier, False

    def add(self, access: Access, writes: bool) -> None:
        """Notes an access; it comes after all that are in the map."""
        if access.low >= access.high:
            return
        first, last = self._cut(access.low), self._cut(access.high)
        if writes and access.is_dense:
            self._replace(first, last, [WrittenSpan(access.low, access.high, [access], [])])
            return
        covered = self._covered(first, last, access)
        for segment in covered:
            known = segment.writers if writes else segment.readers
            # What the same stream did before is done before: a later access stands for those that it covers.
            stream = access.operation.stream
            known[:] = [each for each in known if each.operation.stream is not stream or not access.covers(each)]
            known.append(access)
        self._replace(first, last, covered)

    def forget(self, is_over: Callable[[Access], bool]) -> None:
        """Drops accesses that are over, and segments without any."""
        kept = []
        for segment in self._segments:
            segment.writers = [access for access in segment.writers if not is_over(access)]
            segment.readers = [access for access in segment.readers if not is_over(access)]
            if segment.writers or segment.readers:
                kept.append(segment)
        self._segments = kept
        self._lows = [segment.low for segment in kept]

    def _met(self, low: int, high: int) -> list[WrittenSpan]:
        first = max(bisect_right(self._lows, low) - 1, 0)
        return [segment for segment in self._segments[first : bisect_left(self._lows, high)] if segment.high > low]

    def _cut(self, address: int) -> int:
        """Splits the segment around an address in two; gives the place of the first segment at or after it."""
        place = bisect_left(self._lows, address)
        if place and self._segments[place - 1].high > address:
            left = self._segments[place - 1]
            right = WrittenSpan(address, left.high, list(left.writers), list(left.readers))
            left.high = address
            self._lows.insert(place, address)
            self._segments.insert(place, right)
        return place

    def _covered(self, first: int, last: int, access: Access) -> list[WrittenSpan]:
        """The segments in a range with the gaps between them filled."""
        covered = []
        at = access.low
        for segment in self._segments[first:last]:
            if segment.low > at:
                covered.append(WrittenSpan(at, segment.low, [], []))
            covered.append(segment)
            at = segment.high
        if at < access.high:
            covered.append(WrittenSpan(at, access.high, [], []))
        return covered

    def _replace(self, first: int, last: int, segments: list[WrittenSpan]) -> None:
        self._segments[first:last] = segments
        self._lows[first:last] = [segment.low for segment in segments]

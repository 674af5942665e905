"""Copies in a profile: what a stream notes of each, and the records made of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tessera.profiling import tracks
from tessera.profiling.schema import COPY_CAPABILITIES, Record
from tessera.profiling.tracks import Service


class CopyEvent(NamedTuple):
    """A copy that a stream made: its times in nanoseconds of `time.monotonic_ns`, its bytes, and "h2d" or the like."""

    start_ns: int
    end_ns: int
    thread: int
    nbytes: int
    direction: str


def records(
    copies: Iterable[CopyEvent],
    regions: Iterable[str],
    services: dict[int, list[Service]],
    microseconds: Callable[[int], float],
) -> Iterator[Record]:
    """The records of copies, with the name of the region of each; `microseconds` converts an instant to the session's
    time.
    """
    for each, region in zip(copies, regions, strict=True):
        track = tracks.track_at(services, each.thread, each.start_ns)
        yield Record(
            kind="memcpy",
            kernel_name=f"memcpy {each.direction}",
            stream_id=track.stream_id,
            stream_name=track.name,
            start_us=microseconds(each.start_ns),
            end_us=microseconds(each.end_ns),
            thread_id=each.thread,
            region=region,
            bytes=each.nbytes,
            memcpy_dir=each.direction,
            memcpy_gbps=each.nbytes / max(each.end_ns - each.start_ns, 1),
            capability=COPY_CAPABILITIES,
        )

"""Random programs over a few buffers, streams and events give what the same program gives without streams.

On ordinary streams always. On manual ones where no race is reported: what is refused is left out of both.
"""

from __future__ import annotations

import random
import time

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tessera import event, memcpy, op, stream
from tessera.errors import StreamRaceError
from tessera.stream import Sync

EXTENT, ROWS = 16, 4

pieces = st.sampled_from([(0, EXTENT), (0, EXTENT // 2), (EXTENT // 2, EXTENT), (3, 9)])
places = st.tuples(st.integers(0, 1), pieces)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.integers(0, 2), places, places),
        st.tuples(st.just("double"), st.integers(0, 2), places, places),
        st.tuples(st.just("result"), st.integers(0, 2), places, places),
        st.tuples(st.sampled_from(["record", "wait", "pause", "join"]), st.integers(0, 2), places, places),
        st.tuples(st.just("read"), st.just(0), places, places),
    ),
    max_size=30,
)


class Program:
    """The buffers twice: `real`, which streams work on, and `model`, which torch works on at once."""

    def __init__(self, sync: Sync) -> None:
        self.streams = [stream.create(sync=sync) for _ in range(3)]
        self.events = [event.create() for _ in range(3)]
        self.real = [torch.arange(float(ROWS * EXTENT)).reshape(ROWS, EXTENT) + 100 * n for n in range(2)]
        self.model = [buffer.clone() for buffer in self.real]
        self.results: list[tuple[object, torch.Tensor]] = []
        self.races = 0

    def run(self, what: str, number: int, to: tuple[int, tuple[int, int]], of: tuple[int, tuple[int, int]]) -> None:
        s = self.streams[number]
        if what == "record":
            self.events[to[0]].record(s)
        elif what == "wait":
            self.events[to[0]].wait(s)
        elif what == "join":
            s.synchronize()
        elif what == "pause":
            s.core.enqueue("pause", lambda: time.sleep(random.random() / 500))
        elif what == "read":
            expected = cut(self.model, of) * 1
            assert torch.equal((op.tensor(cut(self.real, of)) * 1).torch(), expected)
        elif what == "result":
            try:
                y = op.add(cut(self.real, of), 1.0, stream=s)
            except StreamRaceError:
                self.races += 1
            else:
                self.results.append((y, cut(self.model, of) + 1))
        else:
            self._write(what, number, to, of)

    def _write(self, what: str, number: int, to: tuple[int, tuple[int, int]], of: tuple[int, tuple[int, int]]) -> None:
        width = min(to[1][1] - to[1][0], of[1][1] - of[1][0])
        to, of = (to[0], (to[1][0], to[1][0] + width)), (of[0], (of[1][0], of[1][0] + width))
        if to[0] == of[0]:
            of = (1 - of[0], of[1])
        target, source, s = cut(self.real, to), cut(self.real, of), self.streams[number]
        try:
            if what == "copy":
                memcpy.async_(dst=target, src=source, stream=s)
            else:
                (op.tensor(source) * 2).eval(out=target, stream=s)
        except StreamRaceError:
            self.races += 1
            return
        cut(self.model, to).copy_(cut(self.model, of) * (1 if what == "copy" else 2))

    def finish(self) -> None:
        for s in self.streams:
            s.synchronize()
        for real, model in zip(self.real, self.model, strict=True):
            assert torch.equal(real, model)
        for result, expected in self.results:
            assert torch.equal(result.torch(), expected)  # type: ignore[attr-defined]


def cut(buffers: list[torch.Tensor], place: tuple[int, tuple[int, int]]) -> torch.Tensor:
    number, (low, high) = place
    return buffers[number][:, low:high]


@pytest.mark.parametrize("sync", ["auto", "manual"])
@hypothesis_settings(max_examples=60)
@given(steps)
def test_a_program_gives_what_it_gives_without_streams(sync: Sync, drawn: list[tuple]) -> None:  # type: ignore[type-arg]
    program = Program(sync)
    for step in drawn:
        program.run(*step)
    program.finish()
    assert sync == "manual" or program.races == 0

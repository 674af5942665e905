"""Regions of threads and of tasks: each names what its own context runs, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest
import torch

from tessera import Tensor, op, profile
from tessera.lazy import evaluation
from tessera.profiling.recording import instrumentation

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _no_contexts_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ran before in the process."""
    monkeypatch.setattr(instrumentation, "follows_contexts", False)


def ones() -> Tensor:
    made: Tensor = op.tensor(torch.ones(8))
    return made


def run(main: Coroutine[Any, Any, object]) -> None:
    asyncio.run(asyncio.wait_for(main, DEADLINE_S))


def named(session: profile.Session) -> list[tuple[str, str]]:
    """The operators of the kernels in order, each with its region."""
    return [(record.operator, record.region) for record in session.records() if record.kind == "kernel"]


class Turns:
    """Has tasks take turns in a given order."""

    def __init__(self, order: str) -> None:
        self._order, self._next = order, asyncio.Condition()
        self._place = 0

    async def of(self, name: str) -> None:
        """Returns when it is this task's turn."""
        async with self._next:
            await self._next.wait_for(lambda: self._order[self._place] == name)
            self._place += 1
            self._next.notify_all()


def test_tasks_that_take_turns_keep_their_regions() -> None:
    x = ones()

    async def main() -> None:
        turns = Turns("abcabcab")

        async def first() -> None:
            await turns.of("a")
            with profile.region("first"):
                op.exp(x).eval()
                await turns.of("a")
                op.tanh(x).eval()
                with profile.region("inner"):
                    await turns.of("a")
                    op.erf(x).eval()

        async def second() -> None:
            await turns.of("b")
            with profile.region("second"):
                await turns.of("b")
                op.neg(x).eval()
                await turns.of("b")
                op.relu(x).eval()
            op.sin(x).eval()

        async def third() -> None:
            await turns.of("c")
            op.cos(x).eval()
            await turns.of("c")
            op.sqrt(x).eval()

        await asyncio.gather(first(), second(), third())

    with profile.session() as session:
        run(main())
    assert named(session) == [
        ("exp", "first"),
        ("cos", ""),
        ("tanh", "first"),
        ("neg", "second"),
        ("sqrt", ""),
        ("erf", "inner"),
        ("relu", "second"),
        ("sin", ""),
    ]
    assert sorted(record.kernel_name for record in session.records() if record.kind == "region") == [
        "first",
        "inner",
        "second",
    ]


def test_values_made_earlier_and_read_after_another_task_has_run_belong_to_the_reader() -> None:
    """No operator is made between the two turns, so that only the evaluation shows who is on."""
    x = ones()

    async def main() -> None:
        turns = Turns("abab")

        async def reader() -> None:
            with profile.region("reader"):
                y, z = op.exp(x), op.tanh(x)
                await turns.of("a")
                y.eval()
                await turns.of("a")
                z.eval()

        async def other() -> None:
            with profile.region("other"):
                await turns.of("b")
                op.neg(x).eval()
                await turns.of("b")

        await asyncio.gather(reader(), other())

    with profile.session() as session:
        run(main())
    assert named(session) == [("exp", "reader"), ("neg", "other"), ("tanh", "reader")]


def test_results_that_a_task_never_reads_are_evaluated_in_its_region() -> None:
    x = ones()

    async def main() -> None:
        turns = Turns("abab")

        async def careless() -> None:
            with profile.region("careless"):
                await turns.of("a")
                op.exp(x)
                await turns.of("a")

        async def other() -> None:
            await turns.of("b")
            with profile.region("other"):  # whose beginning evaluates nothing of the other task's
                op.neg(x)
                await turns.of("b")

        await asyncio.gather(careless(), other())

    with profile.session() as session:
        run(main())
    assert sorted(named(session)) == [("exp", "careless"), ("neg", "other")]


def test_what_an_error_kept_from_evaluation_belongs_to_the_outer_region() -> None:
    x = ones()

    async def main() -> None:
        with profile.region("outer"):
            with contextlib.suppress(KeyError), profile.region("broken"):
                op.exp(x)
                await asyncio.sleep(0)
                raise KeyError
            op.neg(x).eval()

    with profile.session() as session:
        run(main())
    assert sorted(named(session)) == [("exp", "outer"), ("neg", "outer")]


def test_tasks_and_threads_take_over_the_region_they_are_started_in() -> None:
    x = ones()
    y = op.tanh(x)  # before the session, so that nobody but its reader evaluates it

    async def child() -> None:
        op.exp(x).eval()
        with profile.region("of the child"):
            await asyncio.to_thread(lambda: op.neg(x).eval())

    async def main() -> None:
        with profile.region("parent"):
            await asyncio.gather(child(), asyncio.to_thread(y.eval))
        op.relu(x).eval()

    with profile.session() as session:
        run(main())
    assert sorted(named(session)) == [("exp", "parent"), ("neg", "of the child"), ("relu", ""), ("tanh", "parent")]
    threads = {record.operator: record.thread_id for record in session.records() if record.kind == "kernel"}
    assert threads["neg"] != threads["exp"] == threads["relu"] != threads["tanh"]


def test_a_task_that_outlives_a_region_is_in_it_no_more() -> None:
    x = ones()

    async def late(gate: asyncio.Event) -> None:
        op.exp(x).eval()
        await gate.wait()
        op.neg(x).eval()

    async def main() -> None:
        gate = asyncio.Event()
        with profile.region("outer"):
            with profile.region("started in"):
                task = asyncio.create_task(late(gate))
                await asyncio.sleep(0)
            gate.set()
            await task

    with profile.session() as session:
        run(main())
    assert named(session) == [("exp", "started in"), ("neg", "outer")]


def test_a_region_that_is_left_in_another_context_ends() -> None:
    x = ones()

    async def values() -> AsyncGenerator[int]:
        with profile.region("of a generator"):
            yield 1

    async def close(generator: AsyncGenerator[int]) -> None:
        await generator.aclose()

    async def main() -> None:
        generator = values()
        await anext(generator)
        op.exp(x).eval()
        await asyncio.create_task(close(generator))
        op.neg(x).eval()

    with profile.session() as session:
        run(main())
    assert named(session) == [("exp", "of a generator"), ("neg", "")]


def test_one_region_object_serves_several_tasks_at_once() -> None:
    x = ones()
    shared = profile.region("shared")

    async def main() -> None:
        turns = Turns("abab")

        async def task(name: str) -> None:
            with shared:
                await turns.of(name)
                op.exp(x).eval()
                await turns.of(name)
            op.neg(x).eval()

        await asyncio.gather(task("a"), task("b"))

    with profile.session() as session:
        run(main())
    assert sorted(named(session)) == [("exp", "shared"), ("exp", "shared"), ("neg", ""), ("neg", "")]
    assert len([record for record in session.records() if record.kind == "region"]) == 2


def test_threads_begin_without_regions_and_have_their_own() -> None:
    x = ones()

    def work() -> None:
        op.exp(x).eval()
        with profile.region("thread"):
            op.neg(x).eval()

    with profile.session() as session, profile.region("main"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(DEADLINE_S)
        contextvars.copy_context().run(lambda: op.tanh(x).eval())
    assert named(session) == [("exp", ""), ("neg", "thread"), ("tanh", "main")]


def test_a_session_that_begins_inside_a_region_knows_it() -> None:
    x = ones()
    with profile.region("around"):
        with profile.session() as outer:
            op.exp(x).eval()
            with profile.session() as inner:
                op.neg(x).eval()
        op.tanh(x).eval()
    assert named(outer) == [("exp", "around"), ("neg", "around")]
    assert named(inner) == [("neg", "around")]


def test_what_is_noted_has_the_region_of_its_task() -> None:
    async def main() -> None:
        turns = Turns("abab")

        async def task(name: str) -> None:
            with profile.region(name):
                await turns.of(name)
                await turns.of(name)
                instrumentation.copied(8, name, time.monotonic_ns())

        await asyncio.gather(task("a"), task("b"))

    with profile.session() as session:
        run(main())
    copies = [(record.memcpy_dir, record.region) for record in session.records() if record.kind == "memcpy"]
    assert copies == [("a", "a"), ("b", "b")]


def test_nobody_looks_before_runs_until_contexts_take_turns() -> None:
    """What the look costs is paid by programs of tasks alone, and in sessions alone."""

    def is_looked() -> bool:
        return evaluation.before_run is not None

    async def main() -> None:
        with profile.region("of a task"):
            looks.append(is_looked())

    looks: list[bool] = []
    with profile.session():
        with profile.region("outer"), profile.region("inner"):
            looks.append(is_looked())
        run(main())
    looks.append(is_looked())
    assert looks == [False, True, False]


def test_contexts_that_take_turns_without_asyncio_are_noticed() -> None:
    x = ones()
    first, second = contextvars.copy_context(), contextvars.copy_context()
    one, two = profile.region("one"), profile.region("two")
    with profile.session() as session:
        first.run(one.__enter__)
        second.run(two.__enter__)
        first.run(lambda: op.exp(x).eval())
        second.run(lambda: op.neg(x).eval())
        op.tanh(x).eval()
        first.run(one.__exit__, None, None, None)
        second.run(lambda: op.relu(x).eval())
        second.run(two.__exit__, None, None, None)
    assert named(session) == [("exp", "one"), ("neg", "two"), ("tanh", ""), ("relu", "two")]


def test_a_session_that_another_thread_begins_knows_the_regions_that_are_open() -> None:
    """As attaching does: it waits in a thread of its own until the program runs its first plan, in its first region."""
    x = ones()
    session = profile.session()
    with profile.region("outer"), profile.region("inner"):
        beginning = threading.Thread(target=session.__enter__)
        beginning.start()
        beginning.join(DEADLINE_S)
        op.exp(x).eval()
    op.sin(x).eval()
    session.__exit__(None, None, None)
    assert named(session) == [("exp", "inner"), ("sin", "")]

"""Schedules of pipelines: every generator is verified for all small sizes; broken ones are found, by rule."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import ArgumentError, PipelineError
from tessera.sharding.pipeline.actions import Action, PipelineSchedule
from tessera.sharding.pipeline.generators import GENERATORS, schedule
from tessera.sharding.pipeline.simulator import ProgramTimes, peaks, simulate
from tessera.sharding.pipeline.transfers import with_transfers
from tessera.sharding.pipeline.verifier import verify

SIZES = [(ranks, microbatches) for ranks in range(1, 9) for microbatches in range(1, 9)]


def chunks_of(name: str) -> tuple[int, ...]:
    return (1, 2, 3) if name == "interleaved" else (1,)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("name", GENERATORS)
def test_every_schedule_is_proved_with_and_without_its_transfers(name: str, chunks: int) -> None:
    if chunks not in chunks_of(name):
        with pytest.raises(ArgumentError, match="one stage a rank"):
            schedule(name, 2, 4, chunks)
        return
    for ranks, microbatches in SIZES:
        made = schedule(name, ranks, microbatches, chunks)
        assert verify(made) is made
        moved = with_transfers(made, reduce=True, gather=True)
        verify(moved)
        assert Counter(moved.programs()) == Counter(made.programs())
        kinds = Counter(action.kind for actions in moved.ranks for action in actions)
        assert kinds["REDUCE"] == kinds["GATHER"] == made.stages
        crossings = 2 * microbatches * (made.stages - 1) if ranks > 1 else 0
        assert kinds["SEND"] == kinds["RECV"] == crossings


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 4), (4, 8), (8, 8), (3, 9), (8, 16)])
def test_bubbles_of_equal_stages_are_those_of_the_literature(ranks: int, microbatches: int) -> None:
    expected = {
        ("gpipe", 1): (ranks - 1) / microbatches,
        ("1f1b", 1): (ranks - 1) / microbatches,
        ("interleaved", 2): (ranks - 1) / (2 * microbatches),
        ("interleaved", 3): (ranks - 1) / (3 * microbatches),
        ("zb1p", 1): (ranks - 1) / (3 * microbatches),
    }
    for (name, chunks), bubble in expected.items():
        line = simulate(schedule(name, ranks, microbatches, chunks), ProgramTimes(1e-3, 1e-3, 1e-3))
        assert line.bubble == pytest.approx(bubble), name
        assert sum(line.work_s) == pytest.approx(3e-3 * microbatches * ranks * chunks)


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_activations_are_kept_within_the_bounds_of_each_schedule(ranks: int, microbatches: int) -> None:
    assert peaks(schedule("gpipe", ranks, microbatches)) == (microbatches,) * ranks
    assert peaks(schedule("1f1b", ranks, microbatches)) == tuple(min(ranks - r, microbatches) for r in range(ranks))
    assert max(peaks(schedule("zb1p", ranks, microbatches))) == min(ranks, microbatches)
    verify(schedule("1f1b", ranks, microbatches), activations=min(ranks, microbatches))
    if microbatches > ranks:
        with pytest.raises(PipelineError, match=rf"memory: rank 0 keeps {ranks + 1} activations at F{ranks}\.0"):
            verify(schedule("gpipe", ranks, microbatches), activations=ranks)


def swapped(made: PipelineSchedule, rank: int, one: int, other: int) -> PipelineSchedule:
    actions = list(made.ranks[rank])
    actions[one], actions[other] = actions[other], actions[one]
    return replace(made, ranks=(*made.ranks[:rank], tuple(actions), *made.ranks[rank + 1 :]))


def test_a_deadlock_is_found_and_both_sides_of_it_are_named() -> None:
    made = schedule("1f1b", 2, 4)
    # Rank 0 runs all its forwards before the backwards that rank 1 needs nothing of; rank 1 wants them last first.
    late = replace(made, ranks=(made.ranks[0], (Action("F", 1, 3), Action("BW", 1, 3), *made.ranks[1][:-2])))
    with pytest.raises(PipelineError) as failure:
        verify(late)
    assert "deadlock: rank 0 at BW0.0 waits for BW0.1; rank 1 at F3.1 waits for F3.0" in failure.value.message
    assert failure.value.code == "E_PIPELINE"


def test_receives_posted_in_program_order_deadlock_with_sends_that_wait() -> None:
    made = with_transfers(schedule("1f1b", 2, 2))
    late = []
    for actions in made.ranks:
        rest = [action for action in actions if action.kind != "RECV"]
        for receive in (action for action in actions if action.kind == "RECV"):
            kind = "F" if receive.of == "F" else "BW"
            rest.insert(next(i for i, a in enumerate(rest) if a[:3] == (kind, *receive[1:3])), receive)
        late.append(tuple(rest))
    with pytest.raises(PipelineError, match=r"deadlock: rank 0 at SEND\(F\)1\.0 waits for RECV\(F\)1\.1"):
        verify(replace(made, ranks=tuple(late)))


def test_each_rule_finds_what_it_is_for() -> None:
    made = schedule("zb1p", 2, 3)
    first, second = made.ranks
    broken = {
        r"once: W2\.1 happens 0 times": (first, second[:-1]),
        r"once: F0\.0 happens 2 times": ((first[0], *first), second),
        r"once: F9\.0 happens 1 times": ((*first, Action("F", 0, 9)), second),
        r"placement: F0\.0 stands on rank 1": (first[1:], (first[0], *second)),
        r"order: rank 1: W0\.1 comes before B0\.1": (
            first,
            (Action("W", 1, 0), *(a for a in second if a[::2] != ("W", 0))),
        ),
    }
    for message, ranks in broken.items():
        with pytest.raises(PipelineError, match=message):
            verify(replace(made, ranks=ranks))
    moved = with_transfers(made)
    dropped = tuple(a for a in moved.ranks[0] if a != Action("SEND", 0, 1, "F"))
    with pytest.raises(PipelineError, match=r"transfers: SEND\(F\)1\.0 happens 0 times"):
        verify(replace(moved, ranks=(dropped, moved.ranks[1])))
    where = moved.ranks[1].index(Action("RECV", 1, 0, "F"))
    with pytest.raises(PipelineError, match=r"transfers: rank 1: F0\.1 comes before RECV\(F\)0\.1"):
        verify(swapped(moved, 1, where, moved.ranks[1].index(Action("F", 1, 0))))


def plays(made: PipelineSchedule, seed: int) -> bool:
    """Whether ranks that step in a random order, with SENDs that wait for their RECV, all reach their ends."""
    draw = random.Random(seed)
    position = [0] * len(made.ranks)
    posted: set[Action] = set()
    arrived: set[tuple[int, int, str]] = set()
    done: set[Action] = set()
    last = made.stages - 1

    def possible(action: Action) -> bool:
        kind, stage, microbatch, of = action
        if kind == "SEND":
            return Action("RECV", stage + (1 if of == "F" else -1), microbatch, of) in posted
        if kind == "F":
            ours = made.rank_of(stage - 1) == made.rank_of(stage) if stage else False
            inputs = Action("F", stage - 1, microbatch) in done if ours else (stage, microbatch, "F") in arrived
            return stage == 0 or inputs
        if kind in ("B", "BW"):
            ours = made.rank_of(stage + 1) == made.rank_of(stage) if stage < last else False
            before = Action(kind, stage + 1, microbatch) in done if ours else (stage, microbatch, "B") in arrived
            return stage == last or before
        return True

    while True:
        able = [r for r, a in enumerate(made.ranks) if position[r] < len(a) and possible(a[position[r]])]
        if not able:
            return all(position[r] == len(a) for r, a in enumerate(made.ranks))
        rank = draw.choice(able)
        action = made.ranks[rank][position[rank]]
        position[rank] += 1
        done.add(action)
        if action.kind == "RECV":
            posted.add(action)
        elif action.kind == "SEND":
            arrived.add((action.stage + (1 if action.of == "F" else -1), action.microbatch, action.of))


@given(st.sampled_from(sorted(GENERATORS)), st.integers(1, 5), st.integers(1, 6), st.integers(1, 3), st.data())
def test_the_verifier_and_ranks_in_any_order_agree_on_what_ends(
    name: str, ranks: int, microbatches: int, chunks: int, data: st.DataObject
) -> None:
    made = with_transfers(schedule(name, ranks, microbatches, chunks if name == "interleaved" else 1))
    seed = data.draw(st.integers(0, 2**32))
    assert plays(made, seed)
    rank = data.draw(st.integers(0, ranks - 1))
    one, other = (data.draw(st.integers(0, len(made.ranks[rank]) - 1)) for _ in range(2))
    moved = swapped(made, rank, one, other)
    try:
        verify(moved)
    except PipelineError as error:
        if "deadlock" in error.message:
            assert not plays(moved, seed)
    else:
        assert plays(moved, seed)


def test_stages_of_different_length_and_transfers_count() -> None:
    rows = [ProgramTimes(1.0, 1.0, 1.0), ProgramTimes(2.0, 2.0, 2.0, transfer=0.5)]
    line = simulate(schedule("1f1b", 2, 2), rows)
    spans = {str(span.action): (span.start, span.end) for span in line.spans}
    assert spans["F0.1"] == (1.0, 3.0)
    assert spans["BW0.1"] == (3.0, 7.0)
    assert spans["BW0.0"] == (7.5, 9.5)
    assert line.seconds == 15.5
    with pytest.raises(ArgumentError, match="2 rows of times for 3 stages"):
        simulate(schedule("1f1b", 3, 2), rows)


def test_unknown_names_and_sizes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'1f2b' is no pipeline schedule"):
        schedule("1f2b", 2, 2)
    with pytest.raises(ArgumentError, match="all are at least 1"):
        schedule("gpipe", 0, 2)


def test_a_table_prints_a_line_for_each_rank() -> None:
    assert str(schedule("1f1b", 2, 2)) == (
        "1f1b: 2 ranks, 2 microbatches, 1 stages a rank\n"
        "rank 0: F0.0  F1.0  BW0.0 BW1.0\n"
        "rank 1: F0.1  BW0.1 F1.1  BW1.1"
    )


def test_weights_that_are_gathered_late_are_an_error() -> None:
    moved = with_transfers(schedule("1f1b", 2, 2), gather=True)
    (gather, *others), rest = moved.ranks[0], moved.ranks[1:]
    assert str(gather) == "GATHER.0"
    with pytest.raises(PipelineError, match=r"order: rank 0: GATHER\.0 comes after F of its stage"):
        verify(replace(moved, ranks=((*others, gather), *rest)))

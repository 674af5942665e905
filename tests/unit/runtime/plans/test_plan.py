"""Bound plans over hand-written kernels: tables, temporaries, workspaces, teams, concurrency."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from typing import Any

import pytest
import torch

from tessera import dtypes
from tessera.lazy.leaves.leaf import Leaf, result_structure, scalar_leaf
from tessera.runtime.memory import buffers, workspace
from tessera.runtime.plans import native
from tessera.runtime.plans.entry import FRAME_TABLE_OFFSET, source
from tessera.runtime.plans.frames import Step
from tessera.runtime.plans.plan import BoundPlan, PlanOutput, Slot
from tests.unit.runtime.plans.kernels import ELEMENTS, FLOATS, float_leaf, floats, kernel, words

NBYTES = 4 * ELEMENTS


def one_step(name: str, workers: int = 1) -> BoundPlan:
    return BoundPlan(
        steps=[Step(kernel(name), (0, 1), workers)],
        slots=[Slot("leaf", 0), Slot("result", 0)],
        results=[NBYTES],
        outputs=[PlanOutput(0, FLOATS)],
    )


def witness(workers: int, workspace_bytes: int = 0) -> BoundPlan:
    return BoundPlan(
        steps=[Step(kernel("witness"), (), workers, workspace_bytes)],
        slots=[Slot("result", 0)],
        results=[24 * workers],
        outputs=[PlanOutput(0, result_structure((workers, 3), dtypes.int64))],
    )


def seen_by(plan: BoundPlan, workers: int) -> list[list[int]]:
    """(worker, workers, workspace address) as each share of a `witness` plan saw them."""
    (leaf,) = plan.run(())
    flat = words(leaf.address, 3 * workers)
    return [flat[3 * worker : 3 * worker + 3] for worker in range(workers)]


def test_result_is_a_leaf_that_owns_its_memory() -> None:
    (leaf,) = one_step("add_one").run((float_leaf(1.0, -2.0),))
    assert list(floats(leaf))[:3] == [2.0, -1.0, 1.0]
    assert leaf.structure is FLOATS
    assert isinstance(leaf.owner, buffers.Buffer)
    assert leaf.owner.address == leaf.address


def test_steps_run_in_order_through_an_arena() -> None:
    plan = BoundPlan(
        steps=[Step(kernel("add_one"), (0, 1)), Step(kernel("double"), (1, 2))],
        slots=[Slot("leaf", 0), Slot("arena"), Slot("result", 0)],
        results=[NBYTES],
        outputs=[PlanOutput(0, FLOATS)],
        arena_bytes=NBYTES,
    )
    (leaf,) = plan.run((float_leaf(3.0),))
    assert list(floats(leaf))[:2] == [8.0, 2.0]


def test_outputs_may_share_a_buffer_and_pass_leaves_through() -> None:
    plan = BoundPlan(
        steps=[Step(kernel("add_one"), (0, 1))],
        slots=[Slot("leaf", 1), Slot("result", 0)],
        results=[NBYTES],
        outputs=[PlanOutput(0, FLOATS), PlanOutput(0, result_structure((4, 4), dtypes.fp32)), PlanOutput(1, None)],
    )
    leaves = (float_leaf(9.0), float_leaf(5.0))
    first, square, passed = plan.run(leaves)
    assert first.address == square.address
    assert square.shape == (4, 4)
    assert passed is leaves[1]
    assert floats(first)[0] == 6.0


def test_scalar_leaves_arrive_as_their_bits() -> None:
    value = scalar_leaf(2.5, dtypes.fp32)
    plan = BoundPlan(
        steps=[],
        slots=[Slot("leaf", 0)],
        results=[],
        outputs=[PlanOutput(0, None)],
    )
    assert plan.run((value,)) == (value,)
    frame = plan.frames.idle[0]
    assert words(frame.address + FRAME_TABLE_OFFSET, 1) == [0x4020_0000]


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 64])
def test_every_share_runs_exactly_once(workers: int) -> None:
    """Also where fewer threads are granted than there are shares."""
    rows = seen_by(witness(workers), workers)
    assert [row[:2] for row in rows] == [[worker, workers] for worker in range(workers)]


def test_workspaces_are_aligned_and_apart() -> None:
    rows = seen_by(witness(5, workspace_bytes=100), 5)
    addresses = [row[2] for row in rows]
    assert all(address % 64 == 0 for address in addresses)
    assert [later - earlier for earlier, later in itertools.pairwise(addresses)] == [128 + workspace.GAP_BYTES] * 4


def test_one_workers_workspace_has_no_gap_behind_it() -> None:
    assert workspace.total(100, 1) == 128
    assert workspace.total(100, 3) == 2 * workspace.pitch(100) + 128
    assert workspace.total(0, 4) == workspace.pitch(0) == 0


def test_team_computes_what_one_worker_computes() -> None:
    leaf = float_leaf(*range(ELEMENTS))
    (alone,), (together,) = one_step("double").run((leaf,)), one_step("double", workers=2).run((leaf,))
    assert list(floats(alone)) == list(floats(together)) == [2.0 * value for value in range(ELEMENTS)]


def test_shares_run_in_turn_without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = native.build_driver(use_openmp=False)
    monkeypatch.setattr(native, "driver", lambda: alone)
    assert not alone.uses_openmp
    assert [row[:2] for row in seen_by(witness(7), 7)] == [[worker, 7] for worker in range(7)]


def test_concurrent_calls_take_frames_of_their_own() -> None:
    plan = one_step("add_one", workers=2)
    wrong: list[float] = []

    def work(value: float) -> None:
        leaf = float_leaf(value)
        for _ in range(300):
            (result,) = plan.run((leaf,))
            if floats(result)[0] != value + 1:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 1 <= len(plan.frames.idle) <= 4


def test_idle_frames_and_workspaces_go_with_the_cache() -> None:
    plan = witness(2, workspace_bytes=1 << 20)
    plan.run(())
    before = buffers.memory_stats()["allocated_bytes"]
    buffers.empty_cache()
    assert before - buffers.memory_stats()["allocated_bytes"] >= 2 << 20
    assert [row[:2] for row in seen_by(plan, 2)] == [[0, 2], [1, 2]]


def test_plan_goes_with_its_last_reference_and_its_results_stay() -> None:
    plan = one_step("add_one")
    (leaf,) = plan.run((float_leaf(1.0),))
    gone = weakref.ref(plan)
    del plan
    assert gone() is None
    assert floats(leaf)[0] == 2.0


def test_threads_of_torch_are_used_after_torch_used_them() -> None:
    torch.ones(1 << 16).add(1)
    assert [row[0] for row in seen_by(witness(2), 2)] == [0, 1]


def test_entry_is_straight_line_code() -> None:
    slots = (("leaf", 0), ("leaf", 2), ("arena", 0), ("result", 0))
    text = source(slots, results=1, small=(True, False), outputs=((0, True), (1, False)))
    namespace: dict[str, Any] = {}
    compile(text, "entry", "exec")
    exec(text, namespace)
    assert callable(namespace["run"])
    assert "pack(frame.memory, 40, leaves[0].address, leaves[2].address, address1, address0)" in text
    assert "return (leaf0, leaves[1], )" in text


@pytest.mark.parametrize("arena_bytes", [0, 100, 1 << 20])
@pytest.mark.parametrize("nbytes", [0, 1, 64, 1000, 32 * 1024, 32 * 1024 + 1, 1 << 20])
def test_blocks_of_every_size_come_from_the_allocator_and_go_back(nbytes: int, arena_bytes: int) -> None:
    """Small ones are taken from their size class without `allocate`."""
    output = PlanOutput(0, result_structure((nbytes,), dtypes.bool_))
    slots = [Slot("result", 0), Slot("arena")]  # a plan may have temporaries, and none of them an element
    plan = BoundPlan(steps=[], slots=slots, results=[nbytes], outputs=[output], arena_bytes=arena_bytes)
    (first,) = plan.run(())  # makes the frame, which stays
    del first
    before = buffers.memory_stats()["allocated_bytes"]
    kept = [plan.run(())[0] for _ in range(20)]
    assert len({leaf.address for leaf in kept}) == 20
    assert all(leaf.address % 64 == 0 and leaf.owner.nbytes == nbytes and leaf.version == 0 for leaf in kept)
    assert buffers.memory_stats()["allocated_bytes"] >= before + 20 * nbytes
    del kept
    deadline = time.monotonic() + 60  # threads that earlier tests left may hold memory of their own for a moment
    while buffers.memory_stats()["allocated_bytes"] > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert buffers.memory_stats()["allocated_bytes"] <= before


def test_leaves_are_only_read() -> None:
    leaf: Leaf = float_leaf(1.0)
    one_step("double").run((leaf,))
    assert floats(leaf)[0] == 1.0

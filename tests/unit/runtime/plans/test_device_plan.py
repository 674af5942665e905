"""Plans of GPUs and the graph policy, on a device that records what it is asked for."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from tessera import dtypes, profile, settings
from tessera.errors import MemoryLimitError
from tessera.lazy.leaves.leaf import Leaf, result_structure, scalar_leaf
from tessera.lazy.structures import interning
from tessera.profiling.recording import facts
from tessera.profiling.recording.facts import StepFacts
from tessera.profiling.report.report import UNMEASURED, of_recording
from tessera.runtime.plans.gpu_graphs import GraphRunner, shared_runner
from tessera.runtime.plans.gpu_plan import DevicePlan, DeviceStep, Hole
from tessera.runtime.plans.plan import PlanOutput, Slot
from tests.unit.runtime.devices.fake import FakeDriver, FakeLoaded, kernel

RESULT = result_structure((4, 8), dtypes.fp32, "cuda:0")
SLOTS = [Slot("leaf", 0), Slot("leaf", 1), Slot("result", 0), Slot("arena")]
FIRST, SECOND = FakeLoaded(kernel("first")), FakeLoaded(kernel("second"))
FACTS = [StepFacts("exp", "first", 1.0, 2.0, "fp32"), StepFacts("add", "second", 1.0, 2.0, "fp32")]


def leaf(address: int) -> Leaf:
    return Leaf(interning.buffer((4, 8), (8, 1), dtypes.fp32, "cuda:0"), address, object())


def plan(driver: FakeDriver, **changes: object) -> DevicePlan:
    """arena = first(leaf 0, 32, scalar leaf 1); result = second(arena + 64, leaf 0)."""
    steps = [
        DeviceStep(FIRST, (3, 1, 1), (0, 32, 0, 0), (Hole(0, 0), Hole(2, 1, 0, "fp32"), Hole(3, 3, 64))),
        DeviceStep(SECOND, (5, 1, 1), (0, 0, 0), (Hole(0, 3, 64), Hole(1, 0, 16), Hole(2, 2))),
    ]
    arguments = {
        "driver": driver,
        "steps": steps,
        "slots": SLOTS,
        "results": [128],
        "outputs": [PlanOutput(0, RESULT)],
        "arena_bytes": 256,
        "facts": FACTS,
        **changes,
    }
    return DevicePlan(**arguments)  # type: ignore[arg-type]


def test_a_call_fills_the_holes_and_launches_in_order_on_the_current_stream() -> None:
    driver = FakeDriver()
    (result,) = plan(driver).run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])
    out, arena = 4096, 4608
    assert driver.log == [
        ("launch", "first", (3, 1, 1), (1 << 20, 32, 2.5, arena + 64), 7),
        ("launch", "second", (5, 1, 1), (arena + 64, (1 << 20) + 16, out), 7),
    ]
    assert driver.allocated == [128, 256]
    assert (result.structure, result.address, result.version) == (RESULT, out, 0)


@pytest.mark.parametrize(
    ("value", "dtype", "kind"),
    [
        (-3, dtypes.int32, "i32"),
        (-(1 << 40), dtypes.int64, "i64"),
        (0.1, dtypes.fp64, "fp64"),
        (True, dtypes.bool_, "i1"),
    ],
)
def test_scalars_are_passed_as_numbers(value: float, dtype: dtypes.DType, kind: str) -> None:
    driver = FakeDriver()
    steps = [DeviceStep(FIRST, (1, 1, 1), (0,), (Hole(0, 1, 0, kind),))]
    plan(driver, steps=steps).run([leaf(0), scalar_leaf(value, dtype)])
    assert driver.log[0][3] == (value,)


def calls(driver: FakeDriver) -> list[str]:
    """What was asked for, without details."""
    return [entry[0] for entry in driver.log]


def test_the_second_call_records_a_graph_and_later_ones_launch_it() -> None:
    driver = FakeDriver()
    bound, operands = plan(driver), [leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)]
    driver.reused = [4096, 8192] * 4
    for _ in range(4):
        bound.run(operands)
    assert calls(driver) == ["launch", "launch", "record", "graph", "graph", "graph"]
    assert driver.log[-1][1] == 7
    assert driver.log[-1][2] == (
        ((3, 1, 1), (1 << 20, 32, 2.5, 8256)),
        ((5, 1, 1), (8256, (1 << 20) + 16, 4096)),
    )


def test_only_launches_whose_words_changed_are_updated() -> None:
    driver = FakeDriver()
    bound, operands = plan(driver), [leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)]
    driver.reused = [4096, 8192, 4096, 8192, 12288, 8192, 12288, 8192]
    for _ in range(3):
        bound.run(operands)
    assert calls(driver)[2:] == ["record", "graph", "update", "graph"]
    assert driver.log[4] == ("update", 1)  # the result moved, which the second kernel writes
    bound.run([operands[0], scalar_leaf(3.5, dtypes.fp32)])
    assert driver.log[6] == ("update", 0)  # the number changed, which the first kernel reads
    assert driver.log[-1][2][0][1][2] == 3.5


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_a_capture_of_the_program_gets_the_launches_and_leaves_the_graph_as_it_was(mode: str) -> None:
    driver = FakeDriver()
    bound, operands = plan(driver), [leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)]
    with settings.override(cuda_graphs=mode):
        driver.reused = [4096, 8192] * 5
        driver.capturing = True
        bound.run(operands)
        assert calls(driver) == ["launch", "launch"]
        driver.capturing = False
        for _ in range(2):
            bound.run(operands)
        driver.capturing = True
        driver.log.clear()
        bound.run(operands)  # the graph holds exactly this call
        bound.run([leaf(1 << 21), operands[1]])
        assert calls(driver) == ["launch"] * 4
        driver.capturing = False
        driver.reused = [4096, 8192]
        bound.run(operands)
        assert calls(driver)[4:] == ["graph"]


def test_graphs_may_be_off_or_on_from_the_first_call() -> None:
    for mode, expected in (("off", ["launch"] * 4), ("on", ["record", "graph", "graph"])):
        driver = FakeDriver()
        driver.reused = [4096, 8192] * 2
        with settings.override(cuda_graphs=mode):
            bound = plan(driver)
            for _ in range(2):
                bound.run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])
        assert calls(driver) == expected


def test_a_device_without_graphs_is_asked_once() -> None:
    driver = FakeDriver(has_graphs=False)
    bound = plan(driver)
    for _ in range(4):
        bound.run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])
    assert calls(driver).count("record") == 1
    assert calls(driver).count("launch") == 8


def test_plans_of_the_same_kernels_share_a_graph_and_change_grids_and_extents() -> None:
    driver = FakeDriver()
    runner = shared_runner(driver, [FIRST, SECOND])
    assert runner is shared_runner(driver, [FIRST, SECOND])
    assert runner is not shared_runner(driver, [SECOND, FIRST])
    one = plan(driver, runner=runner)
    other = plan(
        driver,
        runner=runner,
        steps=[one.steps[0]._replace(grid=(4, 1, 1), arguments=(0, 33, 0, 0)), one.steps[1]],
    )
    operands = [leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)]
    driver.reused = [4096, 8192] * 5
    for each in (one, one, other, other, one):
        each.run(operands)
    assert calls(driver) == ["launch", "launch", "record", "graph", "update", "graph", "graph", "update", "graph"]
    assert [entry[2][0][1][1] for entry in driver.log if entry[0] == "graph"] == [32, 33, 33, 32]
    assert runner.updates == 2


def test_a_failed_update_leaves_no_graph_with_old_addresses() -> None:
    driver = FakeDriver()
    bound = plan(driver)
    driver.reused = [4096, 8192] * 2
    for _ in range(2):
        bound.run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])
    graph = driver.graphs[0]
    graph.fails = True
    driver.reused = [4096, 8192] * 2
    with pytest.raises(RuntimeError, match="planted"):
        bound.run([leaf(1 << 21), scalar_leaf(2.5, dtypes.fp32)])
    graph.fails = False
    bound.run([leaf(1 << 21), scalar_leaf(2.5, dtypes.fp32)])
    assert driver.log[-1][2] == (
        ((3, 1, 1), (1 << 21, 32, 2.5, 8256)),
        ((5, 1, 1), (8256, (1 << 21) + 16, 4096)),
    )


def test_a_leaf_that_starts_anywhere_has_a_plan_of_its_own() -> None:
    driver = FakeDriver()
    made: list[frozenset[int]] = []

    def realigned(slots: frozenset[int]) -> DevicePlan:
        made.append(slots)
        return plan(driver, steps=[DeviceStep(FakeLoaded(kernel("anywhere")), (1, 1, 1), (0,), (Hole(0, 0),))])

    bound = plan(driver, aligned=[0, 2, 3], realigned=realigned)
    for address in (1 << 20, (1 << 20) + 4, (1 << 20) + 8):
        bound.run([leaf(address), scalar_leaf(2.5, dtypes.fp32)])
    assert made == [frozenset({0})]
    launched = [entry[1] for entry in driver.log if entry[0] == "launch"]
    assert launched[:3] == ["first", "second", "anywhere"]


def test_results_go_where_they_are_wanted() -> None:
    driver = FakeDriver()
    bound = plan(driver)
    operands = [leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)]
    target = Leaf(RESULT, 1 << 16, object())
    assert bound.run_into(operands, [target])
    assert driver.log[-1][3][2] == 1 << 16
    assert driver.allocated == [256]
    other = Leaf(result_structure((8, 4), dtypes.fp32, "cuda:0"), 1 << 16, object())
    assert not bound.run_into(operands, [other])
    assert len(driver.log) == 2


def test_out_of_memory_launches_nothing_and_leaves_the_plan_usable() -> None:
    driver = FakeDriver(limit=100)
    bound = plan(driver)
    operands = [leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)]
    with pytest.raises(MemoryLimitError, match="128 bytes were requested, 100 are free"):
        bound.run(operands)
    assert driver.log == []
    driver.free = 1 << 20
    bound.run(operands)
    assert calls(driver) == ["launch", "launch"]


def test_threads_do_not_mix_their_addresses() -> None:
    driver = FakeDriver()
    bound = plan(driver, runner=GraphRunner(driver))
    threads = [
        threading.Thread(
            target=lambda place=place: [
                bound.run([leaf(place << 20), scalar_leaf(float(place), dtypes.fp32)]) for _ in range(20)
            ]
        )
        for place in range(1, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    graphs = [entry[2] for entry in driver.log if entry[0] == "graph"]
    assert len(graphs) == 79
    for first, second in graphs:
        assert first[1][0] == int(first[1][2]) << 20 == second[1][1] - 16
        assert first[1][3] == second[1][0]


def test_profiles_count_what_they_cannot_measure() -> None:
    driver = FakeDriver()
    bound = plan(driver)
    with profile.session() as session:
        bound.run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])
    assert (session.launched, session.recorded, session.dropped) == (2, 0, 2)
    assert session.unmeasured == {"cuda:0": 2}
    assert f"2 kernels on cuda:0: {UNMEASURED}" in str(of_recording(session.recording))
    assert session.records() == []
    assert facts.of_plan(bound.number) == FACTS


def test_a_plan_that_is_gone_is_forgotten() -> None:
    bound = plan(FakeDriver())
    number, watch = bound.number, weakref.ref(bound)
    del bound
    gc.collect()
    assert watch() is None
    assert facts.of_plan(number) == ()

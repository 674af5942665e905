"""Sizes that a compiled model has not seen: bound by what was recorded for others, to what binding anew would give."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tessera import autotune
from tessera.compiler import pipeline
from tessera.integrations.torch.graphs.extents import Extents
from tessera.integrations.torch.partitions.binding import BoundPartition, WrittenPartition
from tessera.integrations.torch.partitions.partition import Partition
from tessera.integrations.torch.partitions.rebinding import PartitionRecording, ReboundPartition
from tessera.lazy.leaves.leaf import Placeholder
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure
from tessera.runtime.libraries.library import LibraryKernel
from tessera.runtime.plans.frames import Step
from tessera.runtime.plans.plan import BoundPlan, layout_of
from tessera.tuning.store.identity import Identity
from tests.fuzz import sizes
from tests.unit.compiler.tune.winners import launch, narrower

EXTENTS = (2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def attend(x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over a cache that grows, all in one head."""
    keys = torch.cat((past, x), 1)
    scores = (x @ keys.transpose(1, 2)) * 0.25
    return scores.softmax(-1) @ keys + x, keys


def shaped(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Slices, padding, reshapes and what is broadcast; a mean, whose number of elements is a constant."""
    flat = (x * y).reshape(x.shape[0] * x.shape[1], 4)
    return flat.exp(), x[1:, ::2] + 1, functional.pad(x, (0, 0, 1, 2)).relu(), x.transpose(0, 1) * 2, (x - y).mean(0)


def looked_up(table: Tensor, numbers: Tensor) -> Tensor:
    return functional.embedding(numbers, table).cumsum(0)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], Sequence[Tensor]]]] = {
    "attend": (attend, lambda n, m: (torch.randn(2, n, 16), torch.randn(2, m, 16))),
    "shaped": (shaped, lambda n, m: (torch.randn(n, m, 4), torch.randn(1, m, 4))),
    "looked_up": (looked_up, lambda n, m: (torch.randn(m, 8), torch.randint(0, max(m, 1), (n if m else 0,)))),
}


def contents(plan: BoundPlan) -> tuple[object, ...]:
    """All that a plan does."""
    slots, results, outputs = plan.layout
    steps = [(read(step), step.workers, step.workspace_bytes, step.threads, called(step.kernel)) for step in plan.steps]
    lies = [(output.number, layout_of(output.structure)) for output in outputs]
    return steps, slots, results, lies, plan.arena_bytes, plan.derived


def read(step: Step) -> tuple[int, ...]:
    """The descriptors of a step, without the address of a call of torch, which each plan has its own of."""
    return step.descriptors[1:] if isinstance(step.kernel, LibraryKernel) else step.descriptors


def called(kernel: Any) -> object:
    if isinstance(kernel, LibraryKernel):
        return kernel.name, kernel.inputs, kernel.outputs, dict(kernel.attributes)
    return kernel.address


def anew(partition: Partition, key: Sequence[Any]) -> tuple[tuple[object, ...], Sequence[object]]:
    """What binding does for inputs that lie as these, and how outputs are made."""
    extents = Extents()
    for node, lies in zip(partition.inputs, key, strict=True):
        meta = node.meta.get("val")
        extents.bind(meta, torch.empty(lies.shape, device="meta") if isinstance(lies, Structure) else lies)
    leaves = [Placeholder(lies) if isinstance(lies, Structure) else lies for lies in key]
    written = WrittenPartition(partition._work, leaves, extents)
    assert written.structure is not None
    return contents(pipeline.usual_plan(written.structure)), written.outputs.outputs  # type: ignore[arg-type]


def compared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Has what is rebound from now on compared with what binding anew gives; whether anything was, for each attempt."""
    found: list[bool] = []
    rebind = Partition._rebind

    def comparing(self: Partition, key: Sequence[Any]) -> ReboundPartition | None:
        rebound = rebind(self, key)
        found.append(rebound is not None)
        if rebound is not None:
            assert (contents(rebound._plan), rebound.outputs.outputs) == anew(self, key)  # type: ignore[arg-type]
        return rebound

    monkeypatch.setattr(Partition, "_rebind", comparing)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rebound_plan_is_what_binding_anew_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, make = PROGRAMS[name]
    compiled = torch.compile(function, backend="tessera", dynamic=True, options={"fallback": "error"})
    found = compared(monkeypatch)
    chance = random.Random(17)
    torch.manual_seed(3)
    drawn = [(chance.choice(EXTENTS), chance.choice(EXTENTS)) for _ in range(5)]
    edges = [(1, 13), (0, 5), (13, 0)] if name == "looked_up" else [(1, 13)]
    with torch.no_grad():
        for n, m in [(4, 9), (6, 6), (9, 4), *drawn, (12, 12), *edges]:
            values = make(n, m)
            results, expected = compiled(*values), function(*values)
            for result, wanted in zip(_several(results), _several(expected), strict=True):
                torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
                assert walked(result) == walked(wanted)
    assert sum(found) >= 4, "what was recorded holds for hardly any other sizes"


def walked(tensor: Tensor) -> list[int]:
    """The strides that say anything."""
    if not tensor.numel():
        return []
    return [stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent != 1]


def _several(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def doubled(x: Tensor) -> Tensor:
    return torch.relu(x) * 2


def run(compiled: Callable[..., Any], *sizes: int) -> None:
    with torch.no_grad():
        for size in sizes:
            x = torch.randn(size, 6)
            torch.testing.assert_close(compiled(x), doubled(x))


def test_sizes_of_a_known_class_are_bound_without_binding_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(doubled, backend="tessera", dynamic=True)
    run(compiled, 20, 21, 22)

    def refused(*_: Any) -> None:
        raise AssertionError("bound anew")

    monkeypatch.setattr(BoundPartition, "__init__", refused)
    monkeypatch.setattr(pipeline, "_bind", refused)
    run(compiled, 23, 19, 17, 31, 400)


def test_recordings_end_with_the_schedules_that_they_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(doubled, backend="tessera", dynamic=True)
    run(compiled, 20, 21, 22)
    made: list[int] = []
    init = BoundPartition.__init__

    def counted(self: BoundPartition, *given: Any) -> None:
        made.append(1)
        init(self, *given)

    monkeypatch.setattr(BoundPartition, "__init__", counted)
    pipeline.forget_plans()
    run(compiled, 22, 23, 24)
    assert made == [1]  # for 22, which is recorded


def shares(x: Tensor) -> Tensor:
    return x.softmax(1)


def test_a_class_knows_what_is_tuned_for_its_sizes(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    autotune.enable(False)  # nothing is known of the empty cache
    winner = narrower(launch(48, 500))
    narrowest = narrower(launch(56, 500))
    assert launch(50, 502).schedule in (winner, narrowest)
    assert winner != narrowest
    pipeline.forget_plans()
    asked: list[tuple[int, ...]] = []
    remembered = type(autotune).remembered

    def counted(self: Any, identity: Identity, *given: Any) -> Any:
        asked.append(identity.shape)
        return remembered(self, identity, *given)

    monkeypatch.setattr(type(autotune), "remembered", counted)
    compiled = torch.compile(shares, backend="tessera", dynamic=True, options={"fallback": "error"})

    def run(*sizes: tuple[int, int]) -> None:
        for size in sizes:
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), shares(x))

    run((40, 500), (41, 501), (42, 503))
    del asked[:]
    run((43, 499), (60, 470), (37, 511), (63, 512))
    assert not asked, "known sizes ask the cache"
    found = compared(monkeypatch)
    run((48, 500), (56, 500), (48, 501), (64, 500), (65, 500), (33, 257), (33, 256))
    assert all(found)
    assert (48, 500) in asked
    assert (56, 500) in asked


def test_numbers_that_are_sizes_are_those_of_each_call() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * x.shape[0] + torch.where(x > 0, x.shape[1], x)

    compiled = torch.compile(scaled, backend="tessera", dynamic=True, options={"fallback": "error"})
    for n, m in [(3, 4), (4, 5), (5, 5), (7, 5), (3, 9)]:
        x = torch.randn(n, m)
        torch.testing.assert_close(compiled(x), scaled(x))


def test_another_policy_binds_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    from tessera.lazy import policy

    compiled = torch.compile(doubled, backend="tessera", dynamic=True)
    run(compiled, 20, 21, 22)
    monkeypatch.setattr(PartitionRecording, "bind", lambda *_: pytest.fail("rebound"))
    with policy.policy("strict"):
        run(compiled, 22, 23)


def test_symbolic_structures_do_not_stay_in_the_table() -> None:
    compiled = torch.compile(doubled, backend="tessera", dynamic=True)
    run(compiled, 20, 21, 22)
    assert not [each for each in interning.table.values() if any(type(extent) is not int for extent in each.shape)]


def tabled(x: Tensor) -> tuple[Tensor, ...]:
    """Rows that hold tables of numbers made of the sizes."""
    most, places = functional.max_pool2d(x, 2, return_indices=True)
    return functional.adaptive_avg_pool2d(x, (3, 4)), most, places, x.unfold(2, 3, 2) * 2, x[:, None, 1, [0, 1]]


def test_tables_of_numbers_are_those_of_each_size() -> None:
    function = torch.compile(tabled, backend="tessera", dynamic=True, options={"fallback": "error"})
    for extent in (7, 12, 9):
        x = torch.randn(2, 3, extent, extent + 1)
        for found, expected in zip(function(x), tabled(x), strict=True):
            torch.testing.assert_close(found, expected)


def halved(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of an image, with sizes that are computed by way of floats."""
    return functional.interpolate(x, scale_factor=0.5), x[:, :, : int(x.shape[2] / 2)] + 1


def test_sizes_by_way_of_floats_are_those_of_each_call() -> None:
    function = torch.compile(halved, backend="tessera", dynamic=True)
    for shape in ((5, 3, 11, 65), (5, 3, 3, 8), (5, 3, 6, 7), (1, 3, 64, 7)):
        x = torch.randn(shape)
        for found, expected in zip(function(x), halved(x), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_drawn_program_is_right_for_many_sizes() -> None:
    tally = sizes.Tally()
    sizes.check(sizes.Dynamic(("product", "joined", "broadcast mean")), 5, 14, tally)
    assert tally.wrong == []
    assert tally.rebound >= 6

"""Steps of devices along an axis, beside the same in torch over a list of what all devices have: results and gradients.

Values are whole numbers, so that they are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tessera import Tensor, dist, grad, op
from tessera.lazy.layouts import MeshShape
from tessera.sharding.tensors.specs import layout_on

Parts = list[torch.Tensor]
ROWS, COLUMNS = dist.ShardSpec((0,), ("x",)), dist.ShardSpec((1,), ("x",))
BOTH = dist.ShardSpec((0, 1), ("x", "y"))


class StepCase(NamedTuple):
    """A step, as it is written and as torch does it to the values of a group; the layouts before and after."""

    name: str
    step: Callable[[Tensor], Tensor]
    torch: Callable[[Parts], Parts]
    before: dist.ShardSpec
    after: dist.ShardSpec


def _copies(make: Callable[[Parts], torch.Tensor]) -> Callable[[Parts], Parts]:
    return lambda parts: [make(parts)] * len(parts)


def _total(parts: Parts) -> torch.Tensor:
    return torch.stack(parts).sum(0)


def _exchanged(parts: Parts) -> Parts:
    pieces = [part.chunk(len(parts), 1) for part in parts]
    return [torch.cat([sent[rank] for sent in pieces], 0) for rank in range(len(parts))]


CASES = (
    StepCase("sum", lambda v: dist.all_reduce(v, axis="x"), _copies(_total), ROWS, dist.ShardSpec()),
    StepCase("max", lambda v: dist.all_reduce(v, "max", "x"), _copies(lambda p: torch.stack(p).amax(0)), BOTH,
             dist.ShardSpec((1,), ("y",))),
    StepCase("min", lambda v: dist.all_reduce(v, "min", "x"), _copies(lambda p: torch.stack(p).amin(0)), ROWS,
             dist.ShardSpec()),
    StepCase("avg", lambda v: dist.all_reduce(v, "avg", "x"), _copies(lambda p: _total(p) / len(p)), ROWS,
             dist.ShardSpec()),
    StepCase("sum of copies", lambda v: dist.all_reduce(v, axis="x"), _copies(_total), dist.ShardSpec((0,), ("y",)),
             dist.ShardSpec((0,), ("y",))),
    StepCase("gather", lambda v: dist.all_gather(v, "x", 0), _copies(torch.cat), ROWS, dist.ShardSpec()),
    StepCase("gather, and each its part", lambda v: dist.all_gather(v, "x", 1) * (1 + dist.axis_index("x")),
             lambda p: [torch.cat(p, 1) * (1 + n) for n in range(len(p))], ROWS, ROWS),
    StepCase("scatter", lambda v: dist.reduce_scatter(v, "x", 1),
             lambda p: list(_total(p).chunk(len(p), 1)), ROWS, COLUMNS),
    StepCase("exchange", lambda v: dist.all_to_all(v, "x", 1, 0), _exchanged, ROWS, COLUMNS),
    StepCase("shift", lambda v: dist.permute(v, "x", 1), lambda p: [p[n - 1] for n in range(len(p))], BOTH, BOTH),
    StepCase("shift back", lambda v: dist.permute(v, "x", -1),
             lambda p: [p[(n + 1) % len(p)] for n in range(len(p))], ROWS, ROWS),
    StepCase("broadcast", lambda v: dist.broadcast(v, "x", 1), _copies(lambda p: p[1]), BOTH,
             dist.ShardSpec((1,), ("y",))),
    StepCase("what varies meets what does not", lambda v: v * dist.all_reduce(v, axis="x"),
             lambda p: [each * _total(p) for each in p], ROWS, ROWS),
)  # fmt: skip


def groups(grid: MeshShape, axis: str) -> list[list[int]]:
    """The places of each group of devices along an axis."""
    found: dict[tuple[int, ...], list[int]] = {}
    for place in range(grid.devices):
        at = grid.coordinates(place)
        found.setdefault(tuple(number for name, number in at.items() if name != axis), []).append(place)
    return list(found.values())


def by_torch(case: StepCase, whole: torch.Tensor, mesh: dist.Mesh) -> torch.Tensor:
    """The tensor whose shards torch makes of those of another."""
    grid = mesh.grid
    before, after = (layout_on(mesh, spec, 2) for spec in (case.before, case.after))
    values: Parts = [
        _function(whole[tuple(slice(*each) for each in before.region(tuple(whole.shape), grid.coordinates(place)))])
        for place in range(grid.devices)
    ]
    for group in groups(grid, "x"):
        for place, made in zip(group, case.torch([values[place] for place in group]), strict=True):
            values[place] = made
    extents = [
        extent * max(1, *[grid.size(axis) for axis in axes], 1)
        for extent, axes in zip(values[0].shape, after.dims, strict=True)
    ]
    result = torch.zeros(extents, dtype=whole.dtype)
    for place in reversed(range(grid.devices)):
        region = tuple(slice(*each) for each in after.region(tuple(extents), grid.coordinates(place)))
        result[region] = values[place]
    return result


def _function(v: Any) -> Any:
    return v * v - v


def faults(mesh: dist.Mesh, shape: tuple[int, int] = (12, 24)) -> Iterator[str]:
    """What is wrong on a mesh of the axes x and y, case by case."""
    draw = torch.Generator().manual_seed(5)
    whole = torch.randint(-4, 5, shape, generator=draw).double()
    for case in CASES:
        x = dist.distribute(whole, case.before, mesh)
        applied = dist.shard_map(lambda v, case=case: case.step(_function(v)), mesh, case.before, case.after)
        leaf = whole.clone().requires_grad_()
        wanted = by_torch(case, leaf, mesh)
        weights = torch.randint(-3, 4, wanted.shape, generator=draw).double() * 12
        value, gradient = grad.value_and_grad(lambda x, a=applied, w=weights: _weighted(a(x), w, mesh))(x)
        (wanted * weights).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        found: Sequence[tuple[str, torch.Tensor, torch.Tensor]] = (
            ("result", applied(x).full().torch(), wanted.detach()),
            ("value", value.full().torch(), (wanted * weights).sum().detach()),
            ("gradient", gradient.full().torch(), leaf.grad),
        )
        for what, here, there in found:
            if not torch.equal(here, there):
                yield f"{case.name} on {mesh}: the {what} is\n{here}, where torch says\n{there}"


def _weighted(y: Tensor, weights: torch.Tensor, mesh: dist.Mesh) -> Tensor:
    return op.sum(y * dist.distribute(weights, None, mesh))

"""Plans as they run: axes become a `Mesh`, layouts `ShardSpec`s, and a traced step a function on that mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.errors import ArgumentError
from tessera.lazy.devices import is_mesh
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.node import leaf_node
from tessera.sharding.tensors import making
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.specs import ShardSpec, layout_on


@dataclass(frozen=True)
class AppliedStep:
    """A planned step on the plan's mesh, called as the step itself is. `arguments` and `results` are its layouts.

    Arguments are tensors that every process has as a whole, which are shared out, or tensors on the mesh, which are
    laid as planned: what lies so already is not moved.
    """

    mesh: Mesh
    arguments: tuple[ShardSpec, ...]
    results: tuple[ShardSpec, ...]
    step: Callable[..., object]

    def __call__(self, *arguments: object) -> Any:
        """What the step gives, laid as planned. Raises ArgumentError (E_ARGUMENT) for arguments and results of another
        number, MeshError (E_MESH) for those that the layouts do not fit.
        """
        if len(arguments) != len(self.arguments):
            raise ArgumentError(f"{len(arguments)} arguments of a step that was planned with {len(self.arguments)}")
        made = self.step(*[self._placed(*pair) for pair in zip(arguments, self.arguments, strict=True)])
        specs = iter(self.results)
        laid = _laid(made, specs)
        if next(specs, None) is not None:
            raise ArgumentError(f"the step gives fewer tensors than the {len(self.results)} that were planned")
        return laid

    def _placed(self, argument: object, spec: ShardSpec) -> Any:
        node: Any = as_node(argument)
        if is_mesh(node.structure.device):
            return node.reshard(spec)
        laid = layout_on(self.mesh, spec, node.ndim)
        return leaf_node(making.of_whole(node.torch(), node.dtype, self.mesh, laid))


@dataclass(frozen=True)
class AppliedPlan:
    """A planned transformer's mesh and layouts. `batch` is of sequences by tokens, `weights` and the optimizer's
    `state` are of a block's products by their names: "queries" (hidden, heads, extent; keys and values alike),
    "projection" (heads, extent, hidden), "up" (hidden, inner) and "down" (inner, hidden). The model is cut into
    `stages`, and a rank's batch into `microbatches`; `schedule` is that of the pipeline, None without one.
    """

    mesh: Mesh
    batch: ShardSpec
    weights: Mapping[str, ShardSpec]
    state: Mapping[str, ShardSpec]
    stages: int
    microbatches: int
    schedule: str | None


def mesh_of(axes: Mapping[str, int], topology: str, backend: str) -> Mesh:
    """The mesh of these axes, the last of which are the nearest devices."""
    devices = range(math.prod(axes.values()))
    return Mesh(list(axes), devices, shape=list(axes.values()), topology=topology, backend=backend)


def spec_of(split: Sequence[tuple[str, ...]], over: str | None = None) -> ShardSpec:
    """A layout by dimension as a spec; `over` splits the first dimension beside that nothing splits, or the first."""
    dims = list(split)
    if over is not None:
        place = dims.index(()) if () in dims else 0
        dims[place] = (*dims[place], over)
    pairs = [(dimension, axes if len(axes) > 1 else axes[0]) for dimension, axes in enumerate(dims) if axes]
    return ShardSpec(tuple([dimension for dimension, _ in pairs]), tuple([axes for _, axes in pairs]))


def _laid(made: Any, specs: Iterator[ShardSpec]) -> Any:
    """Tensors in tuples and lists, each in its layout."""
    if isinstance(made, tuple | list):
        return type(made)(_laid(each, specs) for each in made)
    spec = next(specs, None)
    if spec is None:
        raise ArgumentError("the step gives more tensors than were planned")
    return made.reshard(spec) if is_mesh(made.structure.device) else made

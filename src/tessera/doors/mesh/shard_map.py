"""`shard_map`: a function that every device of a mesh applies to its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tessera.doors.calls.nodes import node
from tessera.errors import MeshError
from tessera.handle import Tensor
from tessera.lazy.layouts import Layout
from tessera.lazy.node import Node
from tessera.sharding.regions.tracing import mapped
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.specs import ShardSpec, layout_on

Specs: TypeAlias = ShardSpec | Layout | Sequence[ShardSpec | Layout | None] | None


def shard_map(function: Callable[..., Any], mesh: Mesh, in_specs: Specs, out_specs: Specs) -> Callable[..., Any]:
    """The function of tensors of a mesh that has every device apply `function` to its shards.

    Arguments are brought into the layouts `in_specs`, one for each argument, or one for all; None has every device hold
    the whole. Inside, a tensor has the shape of a shard, and `dist.all_reduce(x, axis="tp")` and its like exchange what
    devices have. Results are the shards of tensors that lie as `out_specs` say; along axes that a layout does not name
    all devices have to have the same, which is checked: a result that may differ there is refused. Numbers are handed
    over as they are. The function is run once for all devices, when it is called, on tensors without values.

    Results are lazy, and differentiated: what all devices hold of an argument gets the sum of the cotangents of all.

    Raises MeshError (E_MESH) for layouts that do not fit, extents that the devices do not divide, arguments on no mesh
    or on another, tensors that the function reads and that are no arguments, and results that differ where their
    layouts have copies.
    """

    def applied(*arguments: object) -> Any:
        specs = _each(in_specs, len(arguments), "in_specs", "arguments")
        given = [each if isinstance(each, int | float) else node(each) for each in arguments]
        inputs = [
            layout_on(mesh, spec, each.ndim) if isinstance(each, Node) else None
            for each, spec in zip(given, specs, strict=True)
        ]
        several = False

        def own(*shards: object) -> Sequence[Tensor]:
            nonlocal several
            made = function(*shards)
            several = isinstance(made, tuple | list)
            return [node(each) for each in made] if several else [node(made)]

        def outputs(results: Sequence[Node]) -> list[Layout]:
            wanted = _each(out_specs, len(results), "out_specs", "results")
            return [layout_on(mesh, spec, len(each.shape)) for each, spec in zip(results, wanted, strict=True)]

        results = mapped(own, mesh, given, inputs, outputs)
        return tuple(results) if several else results[0]

    return applied


def _each(specs: Specs, count: int, name: str, what: str) -> Sequence[ShardSpec | Layout | None]:
    """A layout for each of so many."""
    if specs is None or isinstance(specs, ShardSpec | Layout):
        return (specs,) * count
    if not isinstance(specs, tuple | list) or len(specs) != count:
        raise MeshError(f"{name}={specs!r} for {count} {what}", hints=["one layout for each, or one for all of them"])
    return specs

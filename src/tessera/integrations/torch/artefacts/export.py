"""From an exported program to a graph of ATen operators as the backend takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from tessera.errors import ArtefactError
from tessera.integrations.torch.graphs.decompositions import decompositions
from tessera.integrations.torch.graphs.nodes import tensors_of

aten = torch.ops.aten

_STATE = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


@dataclass(frozen=True)
class Exported:
    """A graph whose writes are copies at its end, and what its inputs are: tensors of the program, by their numbers,
    and the user's, in their order.
    """

    module: fx.GraphModule
    state: dict[int, torch.Tensor]
    user_inputs: tuple[int, ...]
    placeholders: tuple[fx.Node, ...]
    ranges: dict[str, tuple[int, int | None]]
    """The least and the greatest value of each size that may change, by its name; None where there is no greatest."""


def exported(program: ExportedProgram) -> Exported:
    """The graph of a program. Raises ArtefactError for what an artefact cannot hold."""
    flat = program.run_decompositions(_table())
    graph = flat.graph_module.graph
    placeholders = tuple(node for node in graph.nodes if node.op == "placeholder")
    state: dict[int, torch.Tensor] = {}
    inputs: list[int] = []
    for number, spec in enumerate(flat.graph_signature.input_specs):
        if spec.kind in _STATE:
            state[number] = _tensor(flat, str(spec.target))
        elif spec.kind is InputKind.USER_INPUT:
            inputs.append(number)
        else:
            raise ArtefactError(f"the exported program takes a {spec.kind.name.lower()}, which artefacts do not have")
    _write_at_the_end(flat, graph, placeholders)
    return Exported(flat.graph_module, state, tuple(inputs), placeholders, _ranges(flat))


def _table() -> dict[Any, Any]:
    """What is taken apart: as under torch.compile, all that torch defines by other operators, and the backend's own."""
    whole = decompositions()
    known = torch._decomp.core_aten_decompositions()
    table: Any = torch.export.default_decompositions()
    composite = {target: function for target, function in table.items() if target not in known}
    return {**composite, **whole}


def _tensor(program: ExportedProgram, name: str) -> torch.Tensor:
    found = program.state_dict.get(name)
    if found is None:
        found = program.constants.get(name)
    if not isinstance(found, torch.Tensor):
        raise ArtefactError(f"the exported program has no tensor {name!r}")
    return found.detach()


def _write_at_the_end(program: ExportedProgram, graph: fx.Graph, placeholders: Sequence[fx.Node]) -> None:
    """Makes copies to inputs of the results that stand for what is written to these."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    targets: dict[str, fx.Node] = {}
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        targets[node.name] = node
        if spec.target is not None:
            targets[spec.target] = node
    kept = []
    for result, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            kept.append(result)
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            target = targets[str(spec.target)]
            with graph.inserting_before(output):
                copy = graph.call_function(aten.copy_.default, (target, result))
            copy.meta["val"] = tensors_of(target)[0]
        else:
            raise ArtefactError(f"the exported program gives a {spec.kind.name.lower()}, which artefacts do not have")
    output.args = (tuple(kept),)
    program.graph_module.recompile()


def _ranges(program: ExportedProgram) -> dict[str, tuple[int, int | None]]:
    found: dict[str, tuple[int, int | None]] = {}
    for symbol, values in program.range_constraints.items():
        upper = values.upper
        found[str(symbol)] = int(values.lower), int(upper) if upper.is_Integer and int(upper) < 1 << 62 else None
    return found

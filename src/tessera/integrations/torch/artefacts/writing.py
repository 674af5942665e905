"""Compiles an exported program for sizes that are known, and writes what has come of it into one file."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tessera.errors import ArtefactError
from tessera.integrations.torch.artefacts.export import Exported, exported
from tessera.integrations.torch.artefacts.values import plain, plain_call
from tessera.integrations.torch.graphs.calls import TorchCall
from tessera.integrations.torch.graphs.execution import CallStep, Slots
from tessera.integrations.torch.graphs.extents import Extents
from tessera.integrations.torch.graphs.graph import CompiledGraph
from tessera.integrations.torch.graphs.nodes import tensors_of
from tessera.integrations.torch.options import options_of
from tessera.integrations.torch.partitions.binding import BoundPartition
from tessera.integrations.torch.partitions.layouts import Layout, layout_of
from tessera.integrations.torch.partitions.outputs import Given
from tessera.integrations.torch.partitions.partition import Partition
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf
from tessera.runtime.plans import native
from tessera.runtime.plans.artefact_file import ArtefactWriter
from tessera.runtime.plans.plan import BoundPlan
from tessera.runtime.plans.stored_plan import plain_plan, plain_structure
from tessera.runtime.plans.stored_tensors import plain_tensor

MOST_SIZES: Final = 9
"""How many values of a size are compiled where the user names none."""

Shapes = Sequence[Sequence[int]]
"""The shapes of a call's tensors, in the order of the arguments."""


def aot_compile(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    shapes: Iterable[Shapes] | None = None,
    options: Mapping[str, object] | None = None,
) -> None:
    """Compiles a program that `torch.export.export` has made, and writes it into one file, which `load` runs.

    The file holds machine code for this CPU, for as many threads as torch uses now, and the parameters, packed as
    kernels read them. `shapes` names the shapes of the tensors of a call, for each call that is to be possible; without
    it, sizes that may change have the example's value, the least and the greatest, and powers of two between. Raises
    ArtefactError (E_ARTEFACT) for what no file can hold.
    """
    if not platform.machine() == "x86_64":
        raise ArtefactError(f"artefacts are made on x86-64, and this is {platform.machine()}")
    found = exported(program)
    chosen = options_of(options)
    frozen = [number for number in found.state if chosen.freeze]
    graph = CompiledGraph(found.module, chosen, frozen)
    writer = ArtefactWriter()
    calls = [_inputs(found, each) for each in shapes] if shapes is not None else _examples(found)
    driver, uses_openmp = native.driver_object()
    recorder = _Recorder(graph, found, writer)
    with torch.no_grad():
        variants = [recorder.variant(inputs) for inputs in calls]
    header = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "driver": {"blob": writer.keep(driver), "openmp": uses_openmp},
        "steps": recorder.steps(),
        "results": plain(graph.execution.results),
        "slots": graph.execution.slot_count,
        "inputs": [_described(found.placeholders[number], number) for number in found.user_inputs],
        "ranges": found.ranges,
        "constants": recorder.constants(),
        "in_spec": _written_spec(program.call_spec.in_spec),
        "out_spec": _written_spec(program.call_spec.out_spec),
        "variants": variants,
    }
    writer.write(Path(path), header)


def _written_spec(spec: Any) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError as error:
        raise ArtefactError(
            f"arguments or results are put together by a class of the user's: {error}",
            hints=["tuples, lists and dictionaries can be written down"],
        ) from error


def _described(node: fx.Node, number: int) -> dict[str, Any]:
    """What an input of the user's has to be: sizes are numbers, or the names of those that may change."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise ArtefactError(
                f"the argument {node.name} is a number that may change",
                hints=["give it as a tensor without dimensions"],
            )
        return {"slot": number, "name": node.name, "value": plain(value)}
    return {
        "slot": number,
        "name": node.name,
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": [_named(size) for size in value.shape],
    }


def _named(size: Any) -> int | str:
    return size if isinstance(size, int) else str(size)


def _inputs(found: Exported, shapes: Shapes) -> dict[int, torch.Tensor]:
    """Tensors of zeros of these shapes, by the numbers of the inputs."""
    nodes = [(number, found.placeholders[number]) for number in found.user_inputs]
    tensors = [(number, tensors_of(node)[0]) for number, node in nodes if tensors_of(node)]
    if len(shapes) != len(tensors):
        raise ArtefactError(f"{len(shapes)} shapes of a program that takes {len(tensors)} tensors")
    sizes = Extents()
    for (_, fake), shape in zip(tensors, shapes, strict=True):
        if len(shape) != fake.dim():
            raise ArtefactError(f"the shape {tuple(shape)} of a tensor of {fake.dim()} dimensions")
        sizes.bind(fake, torch.empty(tuple(shape), device="meta"))
    made: dict[int, torch.Tensor] = {}
    for (number, fake), shape in zip(tensors, shapes, strict=True):
        layout = layout_of(fake, sizes.of)
        if layout.shape != tuple(shape):
            raise ArtefactError(f"the shape {tuple(shape)}, where the exported program has {tuple(fake.shape)}")
        made[number] = torch.empty_strided(layout.shape, layout.strides, dtype=fake.dtype, device="cpu").zero_()
    return made


def _examples(found: Exported) -> list[dict[int, torch.Tensor]]:
    """Inputs for the sizes that are compiled where the user names none."""
    fakes = [tensor for number in found.user_inputs for tensor in tensors_of(found.placeholders[number])]
    sizes: list[Any] = [size for fake in fakes for size in fake.shape]
    hints: dict[Any, int] = {}
    for size in sizes:
        if not isinstance(size, int) and size.node.expr.is_Symbol and size.node.hint is not None:
            hints[size.node.expr] = int(size.node.hint)
    choices = [_sizes(hint, *found.ranges.get(str(symbol), (hint, hint))) for symbol, hint in hints.items()]
    if sum(len(each) > 1 for each in choices) > 1:  # the combinations of several would be too many
        choices = [sorted({each[0], hint, each[-1]}) for each, hint in zip(choices, hints.values(), strict=True)]
    calls = []
    for values in itertools.product(*choices):
        known = dict(zip(hints, values, strict=True))
        shapes = [[_extent(size, known) for size in fake.shape] for fake in fakes]
        calls.append(_inputs(found, shapes))
    return calls


def _extent(size: Any, known: Mapping[Any, int]) -> int:
    return size if isinstance(size, int) else int(size.node.expr.xreplace(known))


def _sizes(hint: int, least: int, greatest: int | None) -> list[int]:
    """Values of a size: the least and the greatest, the example's, and powers of two, the small ones first."""
    powers = [1 << power for power in range(MOST_SIZES) if 1 << power > least]
    top = [] if greatest is None else [greatest]
    found = sorted({least, hint, *top, *(each for each in powers if greatest is None or each < greatest)})
    return found if len(found) <= MOST_SIZES else sorted({*found[: MOST_SIZES - 2], hint, found[-1]})


class _Recorder:
    """Runs a graph, and writes down what each step of it is."""

    def __init__(self, graph: CompiledGraph, found: Exported, writer: ArtefactWriter) -> None:
        self._graph, self._found, self._writer = graph, found, writer
        self._read: set[int] = {
            slot for step in graph.execution.steps if isinstance(step.function, TorchCall) for slot in step.inputs
        }
        self._read.update(each["slot"] for each in plain(graph.execution.results) if isinstance(each, dict))

    def steps(self) -> list[dict[str, Any]]:
        """All steps, those of partitions without what variants say of them."""
        made = []
        for step in self._graph.execution.steps:
            common = {"inputs": step.inputs, "outputs": step.outputs, "several": step.several}
            call = step.function
            made.append({**common, "call": plain_call(call)} if isinstance(call, TorchCall) else common)
        return made

    def constants(self) -> list[Any]:
        """(slot, tensor) of what is there before a call and read by more than packed copies."""
        known = [*self._found.state.items(), *self._graph.execution.constants]
        return [(slot, plain_tensor(tensor, self._writer)) for slot, tensor in known if slot in self._read]

    def variant(self, inputs: Mapping[int, torch.Tensor]) -> dict[str, Any]:
        """What one call computes, for the sizes that its inputs have."""
        execution = self._graph.execution
        slots: Slots = [None] * execution.slot_count
        for number, node in enumerate(self._found.placeholders):
            slots[number] = node.meta.get("val")
        for number, tensor in self._found.state.items():
            # Writes are to buffers; of these a copy is written to, so that the program's own stay.
            slots[number] = tensor if number in self._constants_of_partitions() else tensor.clone()
        for number, value in execution.constants:
            slots[number] = value
        for number, tensor in inputs.items():
            slots[number] = tensor
        partitions = []
        for step in execution.steps:
            values = [slots[number] for number in step.inputs]
            if isinstance(step.function, Partition):
                bound = step.function.bound(values)
                if bound is None:
                    raise ArtefactError(f"a partition of {len(step.function.nodes)} nodes does not compile")
                partitions.append(self._partition(step, bound, values))
                results = step.function(*values)
            else:
                results = step.function(*values)
            for number, value in zip(step.outputs, results if step.several else [results], strict=True):
                slots[number] = value
        return {"shapes": [list(tensor.shape) for tensor in inputs.values()], "partitions": partitions}

    def _constants_of_partitions(self) -> frozenset[int]:
        return frozenset(
            number
            for step in self._graph.execution.steps
            if isinstance(step.function, Partition)
            for number, is_frozen in zip(step.inputs, step.function.frozen, strict=True)
            if is_frozen
        )

    def _partition(self, step: CallStep, bound: BoundPartition, values: Sequence[Any]) -> dict[str, Any]:
        partition = step.function
        assert isinstance(partition, Partition)
        frozen = {place: partition.leaf(place, values[place]) for place, yes in enumerate(partition.frozen) if yes}
        leaves = [frozen.get(place) if own is None else own for place, own in bound.leaves]
        plan = bound.plan()
        if plan is not None and not isinstance(plan, BoundPlan):
            raise ArtefactError("the program is being tuned", hints=["autotune.enable(False) before aot_compile"])
        outputs = bound.outputs.outputs
        self._read.update(step.inputs[each.place] for each in outputs if isinstance(each, Given))
        self._read.update(step.inputs[each.target] for each in outputs if each.target is not None)
        read = set() if plan is None else {slot.number for slot in plan.layout[0] if slot.kind == "leaf"}
        read |= set() if plan is None else {out.number for out in plan.layout[2] if out.structure is None}
        made: list[Any] = []
        for number, (place, own) in enumerate(bound.leaves):
            if own is not None:
                made.append(self._own(own))
            elif place in frozen:
                made.append({"constant": step.inputs[place]} if number in read else None)
                self._read.update([step.inputs[place]] if number in read else [])
            else:
                self._read.add(step.inputs[place])
                made.append({"input": place, "lies": plain_structure(partition.leaf(place, values[place]).structure)})
        return {
            "plan": None if plan is None else plain_plan(plan, leaves, self._writer),
            "leaves": made,
            "outputs": [_output(each) for each in outputs],
        }

    def _own(self, leaf: Leaf) -> dict[str, Any]:
        """A leaf of the partition's own: a number, or a tensor that a row has made."""
        if leaf.structure.kind == "scalar":
            return {"scalar": leaf.structure.dtype.name, "word": leaf.address}
        return {"tensor": plain_tensor(memory_of(leaf), self._writer)}


def _output(output: Any) -> dict[str, Any]:
    layout: Layout | None = output.layout
    lies = None if layout is None else [layout.shape, layout.strides, layout.order]
    if isinstance(output, Given):
        return {"given": output.place, "layout": lies, "target": output.target}
    return {"computed": output.number, "order": output.order, "layout": lies, "target": output.target}

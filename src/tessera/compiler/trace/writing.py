"""Writes a traced function into a file: for each call that is to be possible, the plan that computes its results."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tessera.compiler.entry import plan_over
from tessera.compiler.trace.parameters import Fixed, Parameters, Receiver, Static
from tessera.compiler.trace.traces import FunctionTrace, Key
from tessera.errors import ArtefactError
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.constants import ConstantLeaf
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import joined
from tessera.lazy.structures.structure import Structure
from tessera.runtime.plans import native
from tessera.runtime.plans.artefact_file import ArtefactWriter
from tessera.runtime.plans.plan import BoundPlan
from tessera.runtime.plans.stored_plan import plain_plan, plain_structure
from tessera.runtime.plans.stored_tensors import plain_tensor

Plain: TypeAlias = dict[str, Any]


def write(path: Path, parameters: Parameters, calls: Sequence[tuple[Key, FunctionTrace]]) -> None:
    """Writes a function for these calls. Raises ArtefactError (E_ARTEFACT) where there are none, and for what no file
    can hold.
    """
    if platform.machine() != "x86_64":
        raise ArtefactError(f"artefacts are made on x86-64, and this is {platform.machine()}")
    if not calls:
        raise ArtefactError(
            f"{parameters.function} has not been called yet: which calls is the file for?",
            hints=["export(path, calls=[[(8, 64)], [(16, 64)]])", "or call the kernel first"],
        )
    writer = ArtefactWriter()
    variants = [_Variant(writer, key, traced).plain() for key, traced in calls]
    driver, uses_openmp = native.driver_object()
    header = {
        "kernel": parameters.function,
        "parameters": parameters.plain(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "driver": {"blob": writer.keep(driver), "openmp": uses_openmp},
        "variants": variants,
    }
    writer.write(path, header)


class _Variant:
    """What the file says of one call."""

    def __init__(self, writer: ArtefactWriter, key: Key, traced: FunctionTrace) -> None:
        self._writer, self._key, self._traced = writer, key, traced
        self._holders = traced.holders(key)

    def plain(self) -> Plain:
        arguments = [_plain_argument(part) for part in self._key]
        made = [node for node in self._traced.over(self._holders) if node.is_pending]
        plan: BoundPlan | None = None
        leaves: Sequence[Leaf] = ()
        if made:
            structure, leaves = made[0].state if len(made) == 1 else joined(made)
            bound = plan_over(structure, {})
            if not isinstance(bound, BoundPlan):
                raise ArtefactError("no file holds a plan of a mesh or of a GPU")
            plan = bound
        return {
            "arguments": arguments,
            "numbers": [(index, dtype.name) for index, dtype in self._traced.numbers],
            "single": self._traced.single,
            "results": self._results(),
            "leaves": [] if plan is None else self._leaves(plan, leaves),
            "plan": None if plan is None else plain_plan(plan, self._constants(leaves), self._writer),
        }

    def _results(self) -> list[Any]:
        """For each result: an operand that is given back as it is, a tensor of the function's own, or None for what the
        plan computes.
        """
        results: list[Any] = []
        for node in self._traced.over(self._holders):
            results.append(None if node.is_pending else self._plain_leaf(node.leaves[0]))
        return results

    def _constants(self, leaves: Sequence[Leaf]) -> list[Leaf | None]:
        return [None if leaf in self._holders else leaf for leaf in leaves]

    def _leaves(self, plan: BoundPlan, leaves: Sequence[Leaf]) -> list[Any]:
        """What each leaf of the plan is; None for a constant of which the plan reads a packed copy alone."""
        slots, _, outputs = plan.layout
        read = {slot.number for slot in slots if slot.kind == "leaf"}
        read |= {output.number for output in outputs if output.structure is None}
        return [
            self._plain_leaf(leaf) if number in read or leaf in self._holders else None
            for number, leaf in enumerate(leaves)
        ]

    def _plain_leaf(self, leaf: Leaf) -> Plain:
        if leaf in self._holders:
            return {"operand": self._holders.index(leaf)}
        if leaf.structure.kind == "scalar":
            return {"scalar": leaf.structure.dtype.name, "word": leaf.address}
        if isinstance(leaf, ConstantLeaf):
            leaf.refresh()
        return {"tensor": plain_tensor(memory_of(leaf), self._writer)}


def _plain_argument(part: Structure | Fixed) -> Plain:
    """An argument of a call as JSON. Raises ArtefactError for what only this process has."""
    if isinstance(part, Receiver):
        raise ArtefactError(
            f"a method of {part} cannot be written: its object is this process's own",
            hints=["export a function that calls it: op.kernel(lambda x: layer.forward(x))"],
        )
    if isinstance(part, Static):
        return {"static": part.value}
    if not isinstance(part, Structure):
        return {"left out": True}
    if part.kind == "scalar":
        return {"scalar": part.dtype.name}
    if part.device != CPU:
        raise ArtefactError(f"files hold kernels of CPUs, and an operand is on {part.device}")
    if part.frozen:
        raise ArtefactError(
            "an operand is a constant, whose values the file would not have",
            hints=["have the function read it: weight = op.constant(w) outside, and x @ weight inside"],
        )
    return {"lies": plain_structure(part)}

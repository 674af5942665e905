"""Plans as plain data: what an artefact keeps of one, and the plan that is made of that elsewhere, without a compiler.

StoredKernels and copies of constants are *blobs*, bytes that are told by a number; all else is JSON.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import torch

from tessera.backend.contract import KernelObject, LoadedKernel
from tessera.backend.registry import cpu_backend
from tessera.dtypes import dtype_of
from tessera.errors import ArtefactError
from tessera.lazy.leaves.constants import ConstantLeaf
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure
from tessera.profiling.recording import facts as step_facts
from tessera.profiling.recording.facts import StepFacts
from tessera.runtime.libraries.library import LibraryFunction, LibraryKernel, LibraryOperand, raising
from tessera.runtime.memory import buffers
from tessera.runtime.memory.buffers import Buffer
from tessera.runtime.plans import native
from tessera.runtime.plans.frames import Step
from tessera.runtime.plans.plan import BoundPlan, PlanOutput, Slot

if TYPE_CHECKING:
    from tessera.ops.record import Operator

Plain: TypeAlias = dict[str, Any]
"""A JSON object."""


class Blobs(Protocol):
    """Where bytes are kept."""

    def keep(self, content: bytes) -> int:
        """The number of these bytes; equal ones have one number."""


class StoredCopy:
    """A copy of a constant that was made before; what a plan reads instead of the constant."""

    __slots__ = ("memory",)

    def __init__(self, content: bytes | memoryview) -> None:
        self.memory: Final = buffers.allocate(len(content))
        ctypes.memmove(self.memory.address, bytes(content), len(content))

    def of(self, leaf: Leaf) -> Buffer:
        """The copy, whatever the leaf."""
        return self.memory


def plain_plan(plan: BoundPlan, leaves: Sequence[Leaf | None], blobs: Blobs) -> Plain:
    """What there is to say of a plan that reads these leaves, of which None stand for what changes between calls.

    Raises ArtefactError (E_ARTEFACT) for what only this process can run.
    """
    slots, results, outputs = plan.layout
    copies = []
    for number, derivation in plan.derived:
        leaf = leaves[number]
        if not isinstance(leaf, ConstantLeaf):
            raise ArtefactError("a plan packs what is no constant", hints=["freeze=True makes parameters constants"])
        copies.append((number, blobs.keep(bytes(derivation.of(leaf).memory()))))
    return {
        "steps": [_plain_step(step, blobs) for step in plan.steps],
        "slots": [list(slot) for slot in slots],
        "results": list(results),
        "outputs": [
            (number, None if structure is None else plain_structure(structure)) for number, structure in outputs
        ],
        "arena_bytes": plan.arena_bytes,
        "derived": copies,
        "facts": [asdict(each) for each in step_facts.of_plan(plan.number)],
    }


def _plain_step(step: Step, blobs: Blobs) -> Plain:
    kernel: Any = step.kernel
    common = {"workers": step.workers, "workspace_bytes": step.workspace_bytes, "threads": step.threads}
    if isinstance(kernel, LibraryKernel):
        named = [name for name, record in _operators().items() if record.library is kernel.function]
        if not named or not _is_plain(kernel.attributes):
            raise ArtefactError(f"{kernel.name} is a call of a library that no other process can make")
        operands = {
            side: [(slot, offset, dtype_of(dtype).name, shape, strides) for slot, offset, dtype, shape, strides in each]
            for side, each in (("inputs", kernel.inputs), ("outputs", kernel.outputs))
        }
        return {**common, **operands, "library": named[0], "label": kernel.name, "attributes": dict(kernel.attributes)}
    stored = getattr(kernel, "kernel", None)
    if not isinstance(stored, KernelObject):
        raise ArtefactError("a convolution by transforms of torch's library, whose handles are this process's own")
    return {**common, "kernel": blobs.keep(stored.to_bytes()), "descriptors": list(step.descriptors)}


def _operators() -> Mapping[str, Operator]:
    from tessera.ops import OPERATORS  # most plans call no library, and records take a while to import

    return OPERATORS


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def plain_structure(structure: Structure) -> list[Any]:
    """Shape, strides and dtype of memory."""
    return [structure.shape, structure.strides, structure.dtype.name]


def structure_of(plain: Sequence[Any]) -> Structure:
    """The structure that `plain_structure` has told of."""
    shape, strides, name = plain
    return interning.buffer(tuple(shape), tuple(strides), dtype_of(name))


Content: TypeAlias = Callable[[int], bytes]
"""The bytes of a number."""


class StoredKernels:
    """StoredKernels of an artefact in this process, each loaded once."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._loaded: dict[int, LoadedKernel] = {}

    def of(self, number: int) -> LoadedKernel:
        """The kernel of a number. Raises UnsupportedTargetError where this CPU lacks a feature it relies on."""
        if number not in self._loaded:
            self._loaded[number] = cpu_backend().load(KernelObject.from_bytes(self._content(number)))
        return self._loaded[number]


def plan_of(plain: Plain, kernels: StoredKernels, copy: Callable[[int], StoredCopy]) -> BoundPlan:
    """The plan that `plain_plan` has told of; `copy` gives those of constants."""
    steps = [_step(step, kernels) for step in plain["steps"]]
    calls = any("library" in step for step in plain["steps"])
    return BoundPlan(
        steps=steps,
        slots=[Slot(kind, number) for kind, number in plain["slots"]],
        results=plain["results"],
        outputs=[
            PlanOutput(number, None if structure is None else structure_of(structure))
            for number, structure in plain["outputs"]
        ],
        arena_bytes=plain["arena_bytes"],
        facts=[StepFacts(**{name: _tuples(value) for name, value in each.items()}) for each in plain["facts"]],
        derived=[(number, copy(blob)) for number, blob in plain["derived"]],
        call=raising(native.driver().run) if calls else None,
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _step(plain: Plain, kernels: StoredKernels) -> Step:
    workers, scratch, threads = plain["workers"], plain["workspace_bytes"], plain["threads"]
    if "library" not in plain:
        return Step(kernels.of(plain["kernel"]), tuple(plain["descriptors"]), workers, scratch, threads)
    record = _operators().get(plain["library"])
    if record is None:
        raise ArtefactError(f"the operator {plain['library']!r}, which this Tessera does not have")
    function: LibraryFunction = record.library
    inputs, outputs = ([_operand(each) for each in plain[side]] for side in ("inputs", "outputs"))
    attributes = {name: _tuples(value) for name, value in plain["attributes"].items()}
    kernel = LibraryKernel(plain["label"], function, inputs, outputs, attributes)
    return Step(kernel, (), workers, scratch, threads)


def _operand(plain: Sequence[Any]) -> LibraryOperand:
    slot, offset, name, shape, strides = plain
    dtype: torch.dtype = dtype_of(name).torch
    return LibraryOperand(slot, offset, dtype, tuple(shape), tuple(strides))

"""Calls of libraries in plans: an item of a program becomes a launch over views, and that a step, and facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tessera.compiler.bind.arrays import Shape, Storage, View
from tessera.compiler.bind.launches import LibraryLaunch
from tessera.compiler.graph.program import LibraryItem
from tessera.dtypes import DType, dtype_of
from tessera.lazy.devices import CPU
from tessera.lazy.structures.structure import Structure, contiguous_strides
from tessera.lazy.threads import worker_count
from tessera.ops import OPERATORS, Operator
from tessera.ops.counting import bytes_of, flops_of
from tessera.ops.record import Shaped, elements
from tessera.profiling.recording.facts import StepFacts
from tessera.runtime.libraries.library import LibraryKernel, LibraryOperand, call
from tessera.runtime.memory.derived import derivation
from tessera.runtime.plans.frames import Step
from tessera.runtime.plans.gpu_library_plan import DeviceCall


def library_launch(
    item: LibraryItem, node: Structure, inputs: Sequence[View], new: Callable[[Shape, DType], View]
) -> LibraryLaunch:
    """The call of an item over `inputs`; `node` has its attributes, and `new` makes room for all its results, those
    that nothing reads among them.
    """
    assert node.operator is not None
    operator = OPERATORS[node.operator.name]
    named = node.named_attributes
    outputs = []
    for name in operator.joint or (operator.name,):
        shape, dtype = OPERATORS[name].result_of(node.operands, [view.dtype for view in inputs], named)
        outputs.append(new(shape, dtype))
    return LibraryLaunch(operator, named, tuple(inputs), tuple(outputs))


@dataclass(frozen=True)
class LibraryForm:
    """What a call of a library makes of one constant (`runtime.derived.Form`); `attributes` are (name, value) pairs."""

    operator: str
    attributes: tuple[tuple[str, Any], ...]

    def _result(self, shape: Shape, dtype: DType) -> tuple[Shape, DType]:
        return OPERATORS[self.operator].result_of([Shaped(shape, dtype)], [dtype], dict(self.attributes))

    def nbytes(self, shape: Shape, dtype: DType) -> int:
        """The size of the result."""
        found, element = self._result(shape, dtype)
        return elements(found) * element.itemsize

    def fill(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Writes the result of the call over `source` into the bytes of `target`. Raises as calls in plans do."""
        shape, dtype = self._result(tuple(source.shape), dtype_of(source.dtype))
        result = target.view(dtype.torch).view(shape)
        call(self.operator, OPERATORS[self.operator].library, [source], [result], dict(self.attributes))


def kept_result(node: Structure, inputs: Sequence[View]) -> View | None:
    """The result of a call that stays with its one operand, a constant in CPU memory; None where it does not."""
    assert node.operator is not None
    operator = OPERATORS[node.operator.name]
    if not operator.kept or node.device not in (None, CPU):
        return None
    (source,) = inputs
    storage = source.storage
    if not storage.frozen or storage.leaf is None or storage.derivation is not None:
        return None
    form = LibraryForm(operator.name, tuple(node.named_attributes.items()))
    made = derivation(form, source.dtype, source.shape, source.strides, source.offset_bytes)
    return View(Storage(0, storage.leaf, derivation=made), node.dtype, node.shape, contiguous_strides(node.shape))


def library_step(launch: LibraryLaunch) -> Step:
    """The step of a CPU's plan that makes the call; storages have their slots."""
    kernel = LibraryKernel(*library_call(launch), launch.operator.native)
    return Step(kernel, kernel.descriptors, threads=worker_count())


def library_call(launch: LibraryLaunch) -> DeviceCall:
    """The call as a device's plan makes it; storages have their slots."""
    inputs, outputs = (tuple([_operand(view) for view in views]) for views in (launch.inputs, launch.outputs))
    return DeviceCall(label(launch), launch.operator.library, inputs, outputs, launch.attributes)


def _operand(view: View) -> LibraryOperand:
    """Where a step finds a tensor in the memory of a call."""
    storage = view.storage
    return LibraryOperand(storage.slot, storage.offset + view.offset_bytes, view.dtype.torch, view.shape, view.strides)


def label(launch: LibraryLaunch) -> str:
    """What users know the call by: `topk` of the operators `topk_values` and `topk_indices`."""
    operator = launch.operator
    return operator.joint[0].rpartition("_")[0] if operator.joint else operator.name


def library_facts(launch: LibraryLaunch) -> Callable[[], StepFacts]:
    """What reports say of the call, counted as its operator's record says."""
    inputs, outputs = ([Shaped(view.shape, view.dtype) for view in views] for views in (launch.inputs, launch.outputs))
    return partial(_counted, label(launch), launch.operator, launch.attributes, inputs, outputs)


def _counted(
    name: str, operator: Operator, attributes: Mapping[str, Any], inputs: list[Shaped], outputs: list[Shaped]
) -> StepFacts:
    written = sum(elements(each.shape) * each.dtype.itemsize for each in outputs[1:])
    return StepFacts(
        operator=name,
        kernel_name=name,
        flops=float(flops_of(operator, inputs, outputs[0], attributes)),
        bytes=float(bytes_of(operator, inputs, outputs[0], attributes) + written),
        dtype=inputs[0].dtype.name,
        fused=(name,),
        shapes=tuple(each.shape for each in (*inputs, *outputs)),
        backend="library",
    )

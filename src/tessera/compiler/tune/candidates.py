"""Candidates of a tuning: what is run and checked (`Workload`), and one schedule's kernels ready to run (`Case`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from xdsl.ir import BlockArgument, SSAValue

from tessera.backend.contract import KernelObject
from tessera.compiler.bind.arrays import Call, Storage, View
from tessera.compiler.bind.constants import operand_of, packed_weights_of, unpacked
from tessera.compiler.bind.launcher import Launcher
from tessera.compiler.bind.launches import Launch, PlanCompiler, kernel_launches
from tessera.compiler.graph.program import named_dims
from tessera.dtypes import DType, fp8_e4m3
from tessera.errors import TuneFailedError
from tessera.ir.graph import GraphOperation
from tessera.lazy.devices import CPU, torch_device
from tessera.lazy.structure import contiguous_strides
from tessera.ops import OPERATORS
from tessera.scheduling.binding.regions import attributes_of, dtype_of_value
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.checking import FullReference, check_output
from tessera.tuning.measure.workload import KernelCall as WorkerLaunch
from tessera.tuning.measure.workload import OperandSpec, Values, Workload, is_out_of_memory, materialize

_EXACT_FLOPS = 4e9
"""Work up to which references are computed in float64; larger ones in the operands' own precision or fp32."""


def _operands(call: Call) -> tuple[list[View], list[View]]:
    """The inputs of a call's kernel, in its order, and its outputs."""
    loads = call.item.loads
    inputs = {index: view for (index, _), (view, _) in zip(loads, call.arguments, strict=False)}
    return [inputs[index] for index in range(len(call.item.inputs))], [view for view, _ in call.arguments[len(loads) :]]


def extents_of_call(call: Call) -> dict[str, int]:
    """The values of the extent names of a call's kernel."""
    inputs, outputs = _operands(call)
    operation = call.item.operation
    rows = [*named_dims(operation, "argument_dims"), *named_dims(operation, "result_dims")]
    pairs = zip(rows, [*inputs, *outputs], strict=True)
    return {name: extent for row, view in pairs for name, extent in zip(row, view.shape, strict=True)} | {"1": 1}


class Launched(NamedTuple):
    """What a schedule of a call launches: the launches in order, the slot of each storage in the worker's address
    table, and the temporaries that follow the call's own arguments there.
    """

    launches: list[Launch]
    slots: dict[Storage, int]
    temporaries: tuple[OperandSpec, ...]


def launched_under(call: Call, schedule: Schedule, compiler: PlanCompiler[Any]) -> Launched:
    """What a call launches under a schedule: one kernel, or the parts of one that is not fused, or split."""
    inputs, outputs = _operands(call)
    launcher = Launcher(compiler, extents_of_call(call))
    launcher.launch(call.item, inputs, outputs, schedule)
    slots: dict[Storage, int] = {}
    scalars = sum(view.is_scalar for view, _ in call.arguments)
    buffer, scalar = 0, len(call.arguments) - scalars
    for view, _ in call.arguments:
        if view.is_scalar:
            slots.setdefault(view.storage, scalar)
            scalar += 1
        else:
            slots.setdefault(view.storage, buffer)
            buffer += 1
    temporaries: list[OperandSpec] = []
    launches = kernel_launches(launcher.launches)
    for launch in launches:
        for view, _ in launch.call.arguments:
            if view.storage not in slots:
                slots[view.storage] = len(call.arguments) + len(temporaries)
                temporaries.append(OperandSpec(view.shape, view.strides, view.dtype.name, "zero"))
    return Launched(launches, slots, tuple(temporaries))


def step_launch(launch: Launch, kernel: KernelObject, slots: Mapping[Storage, int]) -> WorkerLaunch:
    """A launch of a candidate that takes several, over the slots of `Launched`."""
    descriptors: list[int] = []
    for view, words in launch.call.arguments:
        descriptors += [slots[view.storage]] if view.is_scalar else [slots[view.storage], 0, *words]
    return WorkerLaunch(kernel.to_bytes(), tuple(descriptors), launch.choice.workers)


def workload_of(call: Call, device: str = CPU) -> Workload:
    """The operands of a call on a device, drawn at random, and the check of its outputs against the references, which
    are computed there. Raises TuneFailedError where there is no memory for them.
    """
    try:
        return _workload_of(call, device)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0]
        raise TuneFailedError(f"no memory for the reference results of kernel {call.item.name}: {reason}") from error


def _workload_of(call: Call, device: str) -> Workload:
    place = torch_device(device)
    item = call.item
    names = {op.operator for op in item.operation.body.block.ops if isinstance(op, GraphOperation)} & OPERATORS.keys()
    values: Values = "positive" if any(OPERATORS[name].positive for name in names) else "normal"
    loads = len(item.loads)
    specs: list[OperandSpec] = []
    scalars: list[int] = []
    inputs: dict[int, torch.Tensor] = {}
    weights = packed_weights_of(call)
    for index, (view, words) in enumerate(call.arguments):
        if view.is_scalar:
            number = scalar_bits(view.dtype)
            scalars.append(number[0])
            inputs.setdefault(item.loads[index][0], torch.tensor(number[1], dtype=view.dtype.torch, device=place))
            continue
        argument = call.shaped.pattern.arguments[index]
        if index == weights or argument.panels is not None:
            shape = tuple(words[: len(words) // 2])
            specs.append(
                OperandSpec(shape, contiguous_strides(shape), argument.dtype.name, "normal", item.loads[index][0])
            )
            panels = materialize(specs[-1]).to(place).tensor
            found = unpacked(call, panels).to(view.dtype.torch) if index == weights else operand_of(call, index, panels)
            inputs.setdefault(item.loads[index][0], found)
            continue
        # An input that is read under two alignments is two operands of the same values.
        seed = item.loads[index][0] if index < loads else 0
        spec = OperandSpec(view.shape, view.strides, view.dtype.name, values if index < loads else "zero", seed)
        specs.append(spec)
        if index < loads:
            inputs.setdefault(item.loads[index][0], materialize(spec).to(place).tensor)
    references = evaluate_region(call, [inputs[i] for i in range(len(item.inputs))])
    first = sum(not view.is_scalar for view, _ in call.arguments[:loads])
    stored = call.arguments[loads:]
    checks = tuple(
        check_output(first + i, FullReference(_stored(reference, dtype).cpu()), dtype.name)
        for i, (reference, dtype) in enumerate(zip(references, (view.dtype for view, _ in stored), strict=True))
    )
    return Workload(tuple(specs), checks, tuple(scalars), device=device)


def _stored(reference: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A reference in the range of its dtype: without infinities, what is too large for fp8_e4m3 becomes 448."""
    if dtype is not fp8_e4m3:
        return reference
    most = torch.finfo(dtype.torch).max
    return reference.clamp(-most, most)


def scalar_bits(dtype: DType) -> tuple[int, float]:
    """The bits and the value of a scalar argument in a tuning run: three quarters, or 1 for integers."""
    value = 0.75 if dtype.kind == "float" else 1
    tensor = torch.tensor([value], dtype=dtype.torch)
    word = int.from_bytes(bytes(tensor.view(torch.uint8).tolist()), "little")
    return word, value


def evaluate_region(call: Call, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a kernel by its operators' references, on the region's inputs."""
    wide = torch.float64 if _flops(call) <= _EXACT_FLOPS else torch.float32
    place = inputs[0].device if inputs else torch.device(CPU)
    body = call.item.operation.body.block
    known: dict[SSAValue, torch.Tensor] = {}

    def value(operand: SSAValue) -> torch.Tensor:
        tensor = inputs[operand.index] if isinstance(operand, BlockArgument) else known[operand]
        return tensor.to(wide) if tensor.is_floating_point() else tensor

    for op in body.ops:
        if not isinstance(op, GraphOperation):
            continue
        dtype = dtype_of_value(op.result).torch
        if op.operator == "constant":
            known[op.result] = torch.tensor(op.attribute("value"), dtype=dtype, device=place)
            continue
        operands = [value(operand) for operand in op.inputs]
        for index, flag in enumerate(("transpose_a", "transpose_b")):
            if op.attribute(flag, False):
                operands[index] = operands[index].mT
        known[op.result] = OPERATORS[op.operator].reference(*operands, **attributes_of(op))
    last = body.last_op
    assert last is not None
    return [known[v] if not isinstance(v, BlockArgument) else inputs[v.index] for v in last.operands]


def _flops(call: Call) -> float:
    extents = call.shaped.extents
    if call.item.family == "convolution":  # the image's own rows and columns are walked by results
        return 2.0 * math.prod(extent for axis, extent in extents.items() if axis not in ("h", "w"))
    if call.item.family == "attention":  # a pair of a query and a key multiplies along one head size, then the other
        pairs = math.prod(extent for axis, extent in extents.items() if axis not in ("d", "v"))
        return 2.0 * pairs * (extents["d"] + extents["v"])
    if call.item.family == "window":
        return 2.0 * math.prod(extent for axis, extent in extents.items() if axis not in ("h", "w"))
    return 2.0 * math.prod(extents.values())


def worker_launch(call: Call, kernel: KernelObject, workers: int) -> WorkerLaunch:
    """The launch over a table of the operands first, then the scalars."""
    buffers = sum(not view.is_scalar for view, _ in call.arguments)
    descriptors: list[int] = []
    buffer, scalar = 0, buffers
    for view, words in call.arguments:
        if view.is_scalar:
            descriptors.append(scalar)
            scalar += 1
        else:
            descriptors += [buffer, 0, *words]
            buffer += 1
    return WorkerLaunch(kernel.to_bytes(), tuple(descriptors), workers)

"""What candidates of a tuning run on (`Workload`): operands that are drawn, results by the operators' references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from xdsl.ir import BlockArgument, SSAValue

from tessera.compiler.bind.arrays import Call, View
from tessera.compiler.bind.constants import operand_of, packed_weights_of, unpacked
from tessera.compiler.explain.reports import kernel_flops
from tessera.compiler.graph.program import named_dims
from tessera.dtypes import DType, fp8_e4m3
from tessera.errors import TuneFailedError
from tessera.ir.graph.operations import GraphOperation
from tessera.lazy.devices import CPU, torch_device
from tessera.lazy.structures.structure import contiguous_strides
from tessera.ops import OPERATORS
from tessera.scheduling.binding.regions import attributes_of, dtype_of_value
from tessera.tuning.measure.checking import FullReference, check_output
from tessera.tuning.measure.workload import OperandSpec, Values, Workload, is_out_of_memory, materialize

_EXACT_FLOPS = 4e9
"""Work up to which references are computed in float64; larger ones in the operands' own precision or fp32."""


def operands_of_call(call: Call) -> tuple[list[View], list[View]]:
    """The inputs of a call's kernel, in its order, and its outputs."""
    loads = call.item.loads
    inputs = {index: view for (index, _), (view, _) in zip(loads, call.arguments, strict=False)}
    return [inputs[index] for index in range(len(call.item.inputs))], [view for view, _ in call.arguments[len(loads) :]]


def extents_of_call(call: Call) -> dict[str, int]:
    """The values of the extent names of a call's kernel."""
    inputs, outputs = operands_of_call(call)
    operation = call.item.operation
    rows = [*named_dims(operation, "argument_dims"), *named_dims(operation, "result_dims")]
    pairs = zip(rows, [*inputs, *outputs], strict=True)
    return {name: extent for row, view in pairs for name, extent in zip(row, view.shape, strict=True)} | {"1": 1}


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
    weights, ranges = packed_weights_of(call), _integers_of(call)
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
        if index < loads and seed in ranges:
            spec = replace(spec, integers=ranges[seed])
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


def _integers_of(call: Call) -> dict[int, tuple[int, int]]:
    """From which range an input of integers is drawn, where an operator of the kernel says that."""
    inputs, found = operands_of_call(call)[0], dict[int, tuple[int, int]]()
    for op in call.item.operation.body.block.ops:
        if not isinstance(op, GraphOperation) or op.operator not in OPERATORS:
            continue
        ranges, operands = OPERATORS[op.operator].integers, [x for x in op.inputs if isinstance(x, BlockArgument)]
        if ranges is not None and len(operands) == len(op.inputs):
            for place, bounds in ranges([inputs[operand.index].shape for operand in operands]).items():
                found[operands[place].index] = bounds
    return found


def _stored(reference: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A reference in the range of its dtype: without infinities, what is too large for fp8_e4m3 becomes 448."""
    if dtype is not fp8_e4m3:
        return reference
    most = torch.finfo(dtype.torch).max
    return reference.clamp(-most, most)


def scalar_bits(dtype: DType) -> tuple[int, float]:
    """The bits and the value of a scalar argument in a tuning run: three quarters, or 1 for integers."""
    value = 0.75 if dtype.kind == "float" else 1
    tensor = torch.tensor([value], dtype=dtype.torch, device="cpu")
    word = int.from_bytes(bytes(tensor.view(torch.uint8).tolist()), "little")
    return word, value


def evaluate_region(call: Call, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a kernel by its operators' references, on the region's inputs."""
    flops = kernel_flops(call.item, [view.shape for view, _ in call.arguments])
    wide = torch.float64 if flops <= _EXACT_FLOPS else torch.float32
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

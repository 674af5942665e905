"""What a device of a plan does in a second, and by which factors real programs stay below it."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.errors import ArgumentError
from tessera.target.gpu import gpu
from tessera.target.topology import Topology


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The constants of the model of steps, each a share of the published peak, and what they were fitted to.

    `products` is that of matrix products, `attention` what attention's reach of theirs, `memory` that of streams
    through memory, `links` that of what topologies say of transfers. `hidden_*` are the shares of transfers that run
    beside computation. `held_out_error` is the mean absolute error on published rows that were not fitted, None where
    there are none; all of them are dense models computed in `precision`.
    """

    products: float
    attention: float
    memory: float
    links: float
    hidden_tensor: float
    hidden_data: float
    hidden_pipeline: float
    source: str
    held_out_error: float | None = None
    precision: str = "bf16"


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """A topology's devices running one kind of numbers: peaks in operations/s, bandwidths in byte/s, memory in bytes.

    `linear` is the peak of the blocks' weights' products, `wide` that of attention and head (bf16 or fp16).
    `cast_bytes` are those that a kernel reads and writes more for each element of a product's operand to round it,
    `operand_bytes` those that are kept of it for the backward, `gradient_bytes` those of an accumulated gradient.
    `host` is the bandwidth to the host's memory, 0 where activations do not go there.
    """

    topology: Topology
    linear: float
    wide: float
    memory_rate: float
    memory: float
    host: float
    cast_bytes: float
    operand_bytes: float
    gradient_bytes: float
    efficiency: Efficiency
    precision: str


def device_rates(
    topology: Topology, precision: str, efficiency: Efficiency, memory: float | None = None
) -> DeviceRates:
    """The devices of a topology, computing in "bf16" or "fp8" (attention and head stay in bf16).

    Raises ArgumentError for another precision, one that the device has no peak for, and topologies of CPUs.
    """
    if topology.device is None:
        raise ArgumentError(f"{topology.name} has no device with published peaks", hints=["dgx-h100 is one that has"])
    target = gpu(topology.device)
    sheet = target.datasheet
    wanted = {"bf16": "bf16", "fp8": "fp8_e4m3"}.get(precision)
    peak = sheet.peak(wanted) if sheet and wanted else None
    wide, level = (sheet.peak("bf16"), sheet.level("HBM")) if sheet else (None, None)
    if sheet is None or peak is None or wide is None or level is None or level.byte_per_s is None:
        raise ArgumentError(f"{target.name} has no published peak of {precision!r}", hints=['"bf16" and "fp8" may be'])
    host = sheet.interconnect.to("host")
    # Activations go to the host only where a coherent link reaches its memory; PCIe is shared and too slow for it.
    coherent = host is not None and host.kind == "NVLink-C2C"
    size = next(found.size_bytes for found in target.memory if found.name == "HBM")
    return DeviceRates(
        topology,
        peak.published,
        wide.published,
        level.byte_per_s,
        float(size) if memory is None else memory,
        host.one_way_byte_per_s if coherent and host is not None else 0.0,
        # fp8: read in 16 bits, written in 8, once as it lies and once transposed for the gradient of weights; gradients
        # in 16 bits, as Megatron-Bridge's recipes have them (grad_reduce_in_fp32 = False).
        *((4.0, 1.0, 2.0) if precision == "fp8" else (0.0, 2.0, 4.0)),
        efficiency,
        precision,
    )

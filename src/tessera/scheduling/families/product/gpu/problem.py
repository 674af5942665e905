"""What the rules of products on GPUs judge by: the problem, and what a schedule takes of a block and of a thread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.dtypes import DType, fp16, fp32, tf32
from tessera.scheduling.families.backends import BACKEND, TRITON
from tessera.scheduling.families.family import WIDEST_ACCESS_BYTES
from tessera.scheduling.families.product.gpu.operands import multiplied_dtype, stored
from tessera.scheduling.language.expression import TRANSCENDENTAL, post_order
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import Argument, ContractionSpec
from tessera.target import Target
from tessera.target.facts import GpuLimits
from tessera.target.float8 import has_float8

VECTOR_BYTES = WIDEST_ACCESS_BYTES
"""The widest access of one thread, and what the copy engine asks of addresses and strides."""
_PRODUCER_WARPS = 4
_BARRIER_BYTES = 2048
"""Barriers of the stages in flight, and what is lost to alignment: more than was seen."""


@dataclass(frozen=True)
class OperandLayout:
    """How an operand or the result lies in memory.

    `is_plain`: it is read as it lies there, with no operator before the product. `unit_axis`: the axis along which its
    type promises a stride of 1, None without one. `address_bytes`: what divides its address and all other strides, a
    power of two up to 16. `extent_bytes`: what divides its extent along the stride of 1 as well.
    """

    is_plain: bool = True
    unit_axis: str | None = "k"
    address_bytes: int = VECTOR_BYTES
    extent_bytes: int = VECTOR_BYTES


@dataclass(frozen=True)
class GpuContractionProblem:
    """What legality depends on: extents, the dtype that is multiplied (`tf32` for fp32 that may be rounded), that of
    the sums, the outputs', the GPU, and how the operands and the result lie.
    """

    m: int
    n: int
    k: int
    batch: int
    operand: DType
    accumulator: DType
    output: DType
    target: Target
    a: OperandLayout = OperandLayout(unit_axis="k")
    b: OperandLayout = OperandLayout(unit_axis="n")
    out: OperandLayout = OperandLayout(unit_axis="n")
    rest: OperandLayout = OperandLayout(unit_axis="n")
    """What prologues and epilogues read beside the operands."""
    converts: bool = False
    """Whether an operand lies in another dtype than it is multiplied in, and is converted in registers."""
    epilogue_words: float = 0.0
    """32-bit registers that the epilogue takes beside the sums, for each element of the part it works on."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.m, self.n, self.k, self.batch

    @property
    def workers(self) -> int:
        """One, the device."""
        return 1

    @property
    def limits(self) -> GpuLimits:
        """What bounds a block and a multiprocessor."""
        assert self.target.gpu is not None
        return self.target.gpu

    @property
    def is_nvidia(self) -> bool:
        """Whether the target is one of NVIDIA's."""
        return self.target.arch.startswith("sm_")

    @property
    def has_copy_engine(self) -> bool:
        """Whether descriptors are copied by an engine of their own (TMA): Hopper and later."""
        return self.target.arch in ("sm_90", "sm_100")

    @property
    def is_narrow(self) -> bool:
        """Whether matrix units multiply it: 16 bits and fewer, and fp32 that may be rounded to tf32."""
        return self.operand.itemsize <= 2 or self.operand is tf32

    @property
    def reads_shared(self) -> bool:
        """Whether the matrix units read their operands from shared memory: Hopper and later, narrow operands."""
        return self.has_copy_engine and self.is_narrow

    @property
    def sums_in_parts(self) -> bool:
        """Whether sums are formed apart, and added up in fp32 now and then: Hopper's of 8-bit floats, which have 14
        bits.
        """
        return self.target.arch == "sm_90" and self.operand.itemsize == 1

    @property
    def has_tensor_memory(self) -> bool:
        """Whether sums stand in memory of the matrix unit's own (Blackwell, narrow operands)."""
        return self.target.arch == "sm_100" and self.is_narrow


# -- one schedule in one problem --------------------------------------------------------------------------------------

DEFAULTS: Mapping[str, KnobValue] = {
    "group": 1,
    "grid": "flat",
    "a_indexing": "pointer",
    "b_indexing": "pointer",
    "out_indexing": "pointer",
    "warp_specialize": False,
    "max_registers": 0,
    "accumulators": 1,
    "epilogue_parts": 1,
    "split_k": 1,
    "vector_bytes": 0,
    "a_eviction": "normal",
    "b_eviction": "normal",
    "out_eviction": "normal",
}
"""What a schedule means that leaves a knob out. 0 is "the compiler's own choice"."""


def brief(schedule: Schedule) -> Schedule:
    """A schedule without the knobs that have their defaults, for people to read."""
    usual = {**DEFAULTS, BACKEND: TRITON}
    return Schedule({name: value for name, value in schedule.items() if usual.get(name) != value})


def knob(schedule: Schedule, name: str) -> KnobValue:
    """The value of a knob that a schedule may leave out."""
    return schedule.get(name, DEFAULTS[name])


def number(schedule: Schedule, name: str) -> int:
    """The value of an integer knob that a schedule may leave out."""
    value = knob(schedule, name)
    assert isinstance(value, int)
    return value


def uses_descriptor(schedule: Schedule, name: str) -> bool:
    """Whether `name` ("a", "b" or "out") is reached by a descriptor."""
    return knob(schedule, f"{name}_indexing") != "pointer"


def summing_threads(schedule: Schedule, problem: GpuContractionProblem) -> int:
    """Threads of a block that hold sums: specialized warps that compute are twice as many as asked for on Hopper."""
    doubled = knob(schedule, "warp_specialize") and problem.target.arch == "sm_90"
    return schedule.integer("warps") * problem.limits.warp_size * (2 if doubled else 1)


def block_threads(schedule: Schedule, problem: GpuContractionProblem) -> int:
    """All threads of a block as compiled, those that only load among them."""
    extra = _PRODUCER_WARPS if knob(schedule, "warp_specialize") else 0
    return summing_threads(schedule, problem) + extra * problem.limits.warp_size


def shared_bytes(schedule: Schedule, problem: GpuContractionProblem) -> int:
    """Bytes of shared memory of one block: the operands' tiles in flight, and the result's on its way out.

    What Triton 3.6 was seen to allot: the operands' tiles once for each stage on Hopper and Blackwell, whose matrix
    units read shared memory while the next tiles arrive there, and once for each stage but one on Ampere and CDNA 3.
    The result takes their place where nothing is in flight any more when it is written.
    """
    bm, bn, bk = schedule.integers("tile")
    stages = schedule.integer("pipeline_depth")
    buffers = stages if problem.reads_shared else max(stages - 1, 1)
    operands = (bm * bk + bk * bn) * problem.operand.itemsize * buffers
    parts = number(schedule, "epilogue_parts")
    # Parts go out one after another where every warp holds rows of its own, which tensor memory gives to 128 rows only;
    # else all sums are rearranged at once.
    least = 128 if problem.has_tensor_memory else 64
    own_rows = problem.reads_shared and bm >= max(least, 16 * schedule.integer("warps"))
    element = problem.output if parts == 1 or own_rows else problem.accumulator
    result = bm * bn * element.itemsize // (parts if own_rows else 1)
    barriers = _BARRIER_BYTES * (2 if problem.has_tensor_memory else 1)
    operands += sum(_turned_bytes(schedule, problem))
    grid = knob(schedule, "grid")
    stays = grid == "persistent" and uses_descriptor(schedule, "out")
    if grid == "fused" or stays or knob(schedule, "warp_specialize"):
        return operands + result + barriers
    descriptors = any(uses_descriptor(schedule, name) for name in ("a", "b", "out"))
    return max(operands, result) + (barriers if descriptors or problem.has_tensor_memory else 0)


def _turned_bytes(schedule: Schedule, problem: GpuContractionProblem) -> Iterator[int]:
    """Bytes of each operand that is turned: Blackwell's unit reads 32-bit operands along K only, and pointers can lay
    them down so. What descriptors bring otherwise, the compiler turns in up to two tiles more.
    """
    bm, bn, bk = schedule.integers("tile")
    for name, side, layout in (("a", bm, problem.a), ("b", bn, problem.b)):
        if problem.has_tensor_memory and uses_descriptor(schedule, name) and needs_turning(problem, layout):
            yield 2 * side * bk * problem.operand.itemsize


def needs_turning(problem: GpuContractionProblem, layout: OperandLayout) -> bool:
    """Whether the matrix unit wants an operand the other way than it lies: from shared memory tf32 is read along K
    only, by Hopper 8-bit floats, too.
    """
    along_k = problem.operand is tf32 or (problem.operand.itemsize == 1 and not problem.has_tensor_memory)
    return along_k and problem.reads_shared and layout.unit_axis != "k"


def sums_per_thread(schedule: Schedule, problem: GpuContractionProblem) -> float:
    """32-bit registers of a thread that hold sums, those that are formed apart among them."""
    bm, bn, _ = schedule.integers("tile")
    copies = 2 if problem.sums_in_parts else 1
    return copies * bm * bn * problem.accumulator.itemsize / 4 / summing_threads(schedule, problem)


def tensor_memory_columns(schedule: Schedule) -> int:
    """Columns of 128 fp32 sums of tensor memory that a block takes, a power of two of at least 32."""
    bm, bn, _ = schedule.integers("tile")
    columns = -(-bm // 128) * bn * number(schedule, "accumulators")
    return max(32, 1 << (columns - 1).bit_length())


# -- problems of specifications ---------------------------------------------------------------------------------------


def contraction_gpu_problem(
    spec: ContractionSpec,
    extents: Mapping[str, int],
    target: Target,
    layouts: Mapping[int, tuple[int, int]] | None = None,
) -> GpuContractionProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes.

    `layouts` gives, for kernel arguments, the bytes that divide address and strides, and those that divide the extent
    along stride 1 as well (powers of two, at most 16); those of packed buffers where it says nothing.
    """
    buffers = [index for index, argument in enumerate(spec.arguments) if argument.axes]
    alignments = {
        index: (layouts or {}).get(index) or packed_alignment(spec.arguments[index], extents) for index in buffers
    }

    def layout(arguments: Sequence[int], is_plain: bool = True) -> OperandLayout:
        units = {_unit_axis(spec.arguments[index]) for index in arguments}
        each = [alignments[index] for index in arguments if _unit_axis(spec.arguments[index])]
        return OperandLayout(
            is_plain,
            units.pop() if len(units) == 1 else None,
            min((address for address, _ in each), default=VECTOR_BYTES),
            min((extent for _, extent in each), default=VECTOR_BYTES),
        )

    operands = {"a": stored(spec.a), "b": stored(spec.b)}
    read = {name: [value.argument] if value.operation == "load" else [] for name, value in operands.items()}
    written = [output.argument for output in spec.outputs]
    rest = [index for index in buffers if index not in {*read["a"], *read["b"], *written}]
    operand = multiplied_dtype(spec)
    if operand.itemsize == 1 and not has_float8(target):
        operand = fp16
    if operand is fp32 and spec.math == "tf32":
        operand = tf32
    narrow = operand.itemsize <= 2
    return GpuContractionProblem(
        m=extents["m"],
        n=extents["n"],
        k=extents["k"],
        batch=math.prod(extents[axis] for axis in spec.batch),
        operand=operand,
        accumulator=spec.accumulator.dtype,
        output=max((output.value.dtype for output in spec.outputs), key=lambda dtype: dtype.itemsize),
        target=target,
        a=layout(read["a"], operands["a"].operation == "load"),
        b=layout(read["b"], operands["b"].operation == "load"),
        out=layout(written),
        rest=replace(layout(rest), unit_axis="n"),
        epilogue_words=_epilogue_words(spec),
        converts=narrow and any(value.dtype.itemsize != operand.itemsize for value in operands.values()),
    )


_DEAR_WORDS = 2.0
"""What gelu, silu and log were seen to take in Triton 3.6: both branches of each element stand in registers."""


def _epilogue_words(spec: ContractionSpec) -> float:
    values = post_order(output.value for output in spec.outputs)
    dear = any(value.operation in TRANSCENDENTAL for value in values)
    whole = [value for value in values if value.operation == "load" and {"m", "n"} <= value.axes]
    return _DEAR_WORDS * dear + sum(value.dtype.itemsize / 4 for value in whole)


def _unit_axis(argument: Argument) -> str | None:
    return next((axis for axis, stride in zip(argument.axes, argument.strides, strict=True) if stride == 1), None)


def packed_alignment(argument: Argument, extents: Mapping[str, int]) -> tuple[int, int]:
    """The bytes, at most 16, that divide the strides of a packed buffer, and its extent along stride 1."""
    unit = _unit_axis(argument)
    if unit is None:
        return argument.dtype.itemsize, argument.dtype.itemsize
    row = extents[unit] * argument.dtype.itemsize
    divided = math.gcd(row, VECTOR_BYTES)
    is_single = all(extents[axis] == 1 for axis in argument.axes if axis != unit)
    return VECTOR_BYTES if is_single else divided, divided

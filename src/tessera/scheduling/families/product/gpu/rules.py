"""The rules of schedules of products on GPUs: which are legal, and what each rule protects.

What Triton 3.6 was seen to do stands beside each rule that is about the compiler. TMA's limits are those of
`cuTensorMapEncodeTiled` ("CUDA Driver API", tensor map object management), the matrix units' shapes those of "PTX ISA",
`mma`, `wgmma` and `tcgen05`, and of "AMD Instinct MI300 Instruction Set Architecture", MFMA.
"""

from __future__ import annotations

from tessera.scheduling.families.product.gpu.problem import (
    VECTOR_BYTES,
    GpuContractionProblem,
    OperandLayout,
    block_threads,
    knob,
    needs_turning,
    number,
    shared_bytes,
    summing_threads,
    sums_per_thread,
    tensor_memory_columns,
    uses_descriptor,
)
from tessera.scheduling.language.knobs import Rule
from tessera.scheduling.language.schedule import Schedule
from tessera.target.facts import TENSOR_MAP_BOX
from tessera.target.occupancy import TENSOR_MEMORY_COLUMNS

_OPERANDS = ("a", "b", "out")
_SECTOR_BYTES = 32
"""What a GPU's caches fetch at least."""


def _layouts(schedule: Schedule, problem: GpuContractionProblem, pointers: bool) -> list[tuple[str, OperandLayout]]:
    """The operands, and the result, that are reached by pointers, or those by descriptors."""
    named = zip(_OPERANDS, (problem.a, problem.b, problem.out), strict=True)
    return [(name, layout) for name, layout in named if uses_descriptor(schedule, name) is not pointers]


def _unit_side(name: str, layout: OperandLayout, schedule: Schedule) -> int:
    """How long a tile is along its operand's stride of 1."""
    bm, bn, bk = schedule.integers("tile")
    sides = {"m": bm, "n": bn // (number(schedule, "epilogue_parts") if name == "out" else 1), "k": bk}
    return sides.get(layout.unit_axis or "", 1)


def _copies_operands(schedule: Schedule) -> bool:
    return uses_descriptor(schedule, "a") and uses_descriptor(schedule, "b")


# -- matrix units -----------------------------------------------------------------------------------------------------


def _dot(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    bm, bn, bk = schedule.integers("tile")
    return bm >= 16 and bn >= 16 and bk >= (32 if problem.operand.itemsize == 1 else 16)


def _warpgroups(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    bm, warps = schedule.integers("tile")[0], schedule.integer("warps")
    if bm < 64 or not problem.reads_shared:
        return True
    return warps in (4, 8) if problem.has_tensor_memory else warps % 4 == 0


def _tensor_memory(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    if not problem.has_tensor_memory or schedule.integers("tile")[0] < 64:
        return True
    return tensor_memory_columns(schedule) <= TENSOR_MEMORY_COLUMNS


def _accumulators(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    if number(schedule, "accumulators") == 1:
        return True
    # Triton 3.6 gives loops whose loads it does not pipeline one buffer, silently.
    pipelined = schedule.integer("pipeline_depth") > 1 and _copies_operands(schedule)
    tall = problem.has_tensor_memory and schedule.integers("tile")[0] >= 64
    return tall and pipelined and knob(schedule, "grid") == "fused"


# -- shared memory, registers, threads --------------------------------------------------------------------------------


def _shared(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    return shared_bytes(schedule, problem) <= problem.limits.max_shared_bytes_per_block


def _register_limit(schedule: Schedule, problem: GpuContractionProblem) -> int:
    """Registers that a thread that computes can have."""
    limits = problem.limits
    cap = number(schedule, "max_registers") or limits.max_registers_per_thread + 1
    return min(limits.max_registers_per_thread + 1, limits.registers // summing_threads(schedule, problem), cap)


def _registers(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    # Half of CDNA 3's registers are accumulators only.
    share = 2 if problem.is_nvidia else 4
    return sums_per_thread(schedule, problem) <= _register_limit(schedule, problem) / share


def _operands(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    if problem.is_narrow and not problem.converts:
        return True
    # Wide operands are multiplied by ordinary instructions, from registers, where narrow ones are converted, too: a
    # block of each stands there.
    bm, bn, bk = schedule.integers("tile")
    words = (bm + bn) * bk * problem.operand.itemsize / 4 / summing_threads(schedule, problem)
    return words + sums_per_thread(schedule, problem) <= _register_limit(schedule, problem) / 2


def _cap(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    cap = number(schedule, "max_registers")
    if not cap:
        return True
    # A cap takes the place of the one that lets a block fit a multiprocessor.
    most = min(255, problem.limits.registers // block_threads(schedule, problem))
    return problem.is_nvidia and cap % 8 == 0 and 24 <= cap <= most and not knob(schedule, "warp_specialize")


def _block(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    return block_threads(schedule, problem) <= 1024


def _work(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    bm, bn, _ = schedule.integers("tile")
    return bm * bn >= schedule.integer("warps") * problem.limits.warp_size


def _useful(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    bm, bn, bk = schedule.integers("tile")
    return bm <= max(16, 2 * problem.m) and bn <= max(16, 2 * problem.n) and bk <= max(32, 2 * problem.k)


# -- the way to memory ------------------------------------------------------------------------------------------------


def _engine(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    return problem.has_copy_engine or not _layouts(schedule, problem, pointers=False)


def _plain(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    return all(layout.is_plain and layout.unit_axis for _, layout in _layouts(schedule, problem, pointers=False))


def _aligned(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    reached = _layouts(schedule, problem, pointers=False)
    exists = min(problem.m, problem.n, problem.k, problem.batch) > 0
    return not reached or (exists and all(layout.address_bytes >= VECTOR_BYTES for _, layout in reached))


def _box(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    for name, layout in _layouts(schedule, problem, pointers=False):
        size = (problem.output if name == "out" else problem.operand).itemsize
        if _unit_side(name, layout, schedule) * size < VECTOR_BYTES or max(schedule.integers("tile")) > TENSOR_MAP_BOX:
            return False
    return True


def _vectors(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    width = number(schedule, "vector_bytes")
    if not width:
        return True
    pointed = [layout for _, layout in _layouts(schedule, problem, pointers=True)]
    return width >= problem.operand.itemsize and all(
        width <= layout.extent_bytes for layout in (*pointed, problem.rest) if layout.unit_axis
    )


def _coalesced(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    extents = {"m": problem.m, "n": problem.n, "k": problem.k}
    for name, layout in _layouts(schedule, problem, pointers=True):
        size = (problem.output if name == "out" else problem.operand).itemsize
        side = _unit_side(name, layout, schedule)
        if layout.unit_axis and side * size < _SECTOR_BYTES and side < extents[layout.unit_axis]:
            return False
    return True


def _evictions(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    asked = [name for name in _OPERANDS if knob(schedule, f"{name}_eviction") != "normal"]
    if not asked:
        return True
    by_loads = asked == ["out"] or schedule.integer("pipeline_depth") == 1
    return problem.is_nvidia and by_loads and not any(uses_descriptor(schedule, name) for name in asked)


# -- the shape of the program -----------------------------------------------------------------------------------------


def _specialized(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    if not knob(schedule, "warp_specialize"):
        return True
    bm, grid, warps = schedule.integers("tile")[0], knob(schedule, "grid"), schedule.integer("warps")
    if not (problem.reads_shared and _copies_operands(schedule)):
        return False
    if problem.has_tensor_memory:
        return bm >= 64 and grid != "persistent" and warps in (4, 8)
    # Triton 3.6 gives other warps and grids none, silently, and fails on other epilogues and on operands it must turn.
    if any(needs_turning(problem, layout) for layout in (problem.a, problem.b)):
        return False
    whole = number(schedule, "epilogue_parts") == 1 and knob(schedule, "out_indexing") != "host_descriptor"
    return bm >= 128 and grid != "fused" and warps == 4 and whole


def _parts(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    parts, (bm, bn, _) = number(schedule, "epilogue_parts"), schedule.integers("tile")
    return parts == 1 or (bn // parts >= 16 and bm * bn // parts >= summing_threads(schedule, problem))


def _split(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    pieces, bk = number(schedule, "split_k"), schedule.integers("tile")[2]
    if pieces == 1:
        return True
    if problem.k % pieces or problem.k // pieces < bk:
        return False
    # Pieces begin at multiples of K / S: as aligned as what the operands are read by.
    step = problem.k // pieces * problem.operand.itemsize
    wanted = VECTOR_BYTES if _layouts(schedule, problem, pointers=False) else number(schedule, "vector_bytes") or 1
    return step % wanted == 0


RULES: tuple[Rule[GpuContractionProblem], ...] = (
    Rule("matrix-unit-shape", "a tile holds at least one 16 x 16 x 16 product (32 deep for 8-bit operands)", _dot),
    Rule(
        "warpgroups",
        "Hopper's and Blackwell's matrix units multiply 64 rows for four warps together: tiles of 64 rows and more take"
        " a multiple of 4 warps (Blackwell 4 or 8)",
        _warpgroups,
    ),
    Rule("tensor-memory", "the sums of a block fit the 512 columns of Blackwell's tensor memory", _tensor_memory),
    Rule(
        "accumulators",
        "only sums in Blackwell's tensor memory take turns in two buffers, in a fused grid that descriptors bring"
        " operands to in stages",
        _accumulators,
    ),
    Rule("shared-memory", "the tiles in flight must fit the shared memory of one block", _shared),
    Rule(
        "sums-in-registers", "the sums of a thread take at most half of its registers (a quarter on CDNA 3)", _registers
    ),
    Rule("operands-in-registers", "wide operands and sums take at most half of a thread's registers", _operands),
    Rule(
        "register-cap",
        "NVIDIA's compiler takes a cap of 24 to 255 registers in steps of 8 with which a block fits a multiprocessor,"
        " where warps are not specialized, as those have caps of their own",
        _cap,
    ),
    Rule("threads-per-block", "a block has at most 1024 threads", _block),
    Rule("work-per-thread", "each thread has at least one element of the result", _work),
    Rule("tile-within-problem", "a tile is at most twice as large as the problem, or as small as tiles get", _useful),
    Rule("copy-engine", "descriptors need the copy engine of Hopper and later (TMA)", _engine),
    Rule(
        "descriptor-operand",
        "what a descriptor moves lies in memory as it is multiplied or stored, with a stride of 1",
        _plain,
    ),
    Rule(
        "descriptor-alignment",
        "addresses and strides that descriptors hold are multiples of 16 bytes, and no extent is 0",
        _aligned,
    ),
    Rule("descriptor-box", "a descriptor's block has sides of at most 256 and rows of at least 16 bytes", _box),
    Rule(
        "vector-width",
        "addresses, strides and extents along stride 1 of what pointers reach are multiples of a vector, which holds an"
        " element at least",
        _vectors,
    ),
    Rule("coalesced-access", "a tile's rows along stride 1 fill a sector of 32 bytes, or are whole rows", _coalesced),
    Rule(
        "eviction-policy",
        "eviction policies are NVIDIA's, of ordinary loads and stores: asynchronous copies (pipeline_depth above 1,"
        " descriptors) drop them",
        _evictions,
    ),
    Rule(
        "warp-specialization",
        "loads get warps of their own where descriptors bring both narrow operands: on Hopper with 4 warps, 128 rows, a"
        " grid that is not fused, a result in one part that no descriptor of the host stores, and operands of 8 and"
        " 32 bits along K, on Blackwell with 64 rows and a grid that is flat or fused",
        _specialized,
    ),
    Rule("epilogue-parts", "a part of the result is at least 16 columns wide, an element for each thread", _parts),
    Rule("split-k", "K is cut into equal parts of a step at least, which begin where their loads are aligned", _split),
)
"""Every rule, as `space` applies it."""

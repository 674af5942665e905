"""One kernel: from the Tile IR module to LLVM IR text with the ABI of `backend/llvm/__init__.py`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp
from xdsl.ir import Attribute

from tessera.backend.contract import Parameter
from tessera.backend.llvm.emission.control import CONTROL
from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.llvm.emission.generator import Generator
from tessera.backend.llvm.emission.tile_clock import TileClock
from tessera.backend.llvm.emission.values import (
    I1,
    BufferValue,
    Element,
    IndexValue,
    Tile,
    Value,
    constant_index,
    element_of,
)
from tessera.backend.llvm.matrix.product import MATRIX
from tessera.backend.llvm.matrix.tiles import unit_values
from tessera.backend.llvm.memory.buffers import MEMORY
from tessera.backend.llvm.memory.staging import STAGING
from tessera.backend.llvm.tiles.arithmetic import ARITHMETIC
from tessera.backend.llvm.tiles.functions import FUNCTIONS
from tessera.backend.llvm.tiles.operations import TILES
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.facts import static_strides
from tessera.ir.tile.operations import find_kernel
from tessera.target import Target

_HANDLERS = {**CONTROL, **MEMORY, **STAGING, **MATRIX, **TILES, **ARITHMETIC, **FUNCTIONS}
_WORD_BYTES = 8


@dataclass(frozen=True)
class KernelText:
    """A kernel as LLVM IR text, and what its callers must know about it."""

    text: str
    entry: str
    workspace_bytes: int
    parameters: tuple[Parameter, ...]
    outputs: tuple[int, ...]
    timed: bool


def generate(module: ModuleOp, target: Target) -> KernelText:
    """The LLVM IR of a module's kernel for a CPU. Raises CompileError for what the backend has no code for."""
    kernel = find_kernel(module)
    declarations: dict[str, None] = {}
    emitter = FunctionEmitter(target, declarations)
    block = kernel.body.block
    generator = Generator(emitter, _HANDLERS, unit_values(block))
    parameters = tuple(parameter(argument.type) for argument in block.args)
    generator.define(block.args, _arguments(emitter, [argument.type for argument in block.args]))
    if kernel.timed is not None:
        words = sum(described.descriptor_words for described in parameters)
        memory = emitter.emit(f"inttoptr i64 {_word(emitter, '%descriptors', words)} to ptr")
        generator.tile_clock = TileClock(emitter, memory)
    generator.run(block)
    if generator.streams:
        _order_streams(emitter)
    emitter.effect("ret void")
    return KernelText(
        text=_module_text(kernel.sym_name.data, emitter, declarations),
        entry=kernel.sym_name.data,
        workspace_bytes=generator.workspace_bytes,
        parameters=parameters,
        outputs=tile.integers(kernel.outputs),
        timed=kernel.timed is not None,
    )


def parameter(kind: Attribute) -> Parameter:
    """The description of a kernel argument of this type."""
    if not isinstance(kind, MemRefType):
        return Parameter("index" if isinstance(kind, IndexType) else element_of(kind).name)
    extents = tuple(None if extent < 0 else extent for extent in kind.get_shape())
    return Parameter(element_of(kind).name, extents, tuple(static_strides(kind)))


def _arguments(emitter: FunctionEmitter, kinds: list[Attribute]) -> list[Value]:
    values: list[Value] = []
    word = 0
    for kind in kinds:
        described = parameter(kind)
        address = _word(emitter, "%table", _word(emitter, "%descriptors", word))
        if described.is_scalar:
            values.append(_scalar(emitter, kind, address))
        else:
            values.append(_buffer(emitter, described, element_of(kind), address, word + 1))
        word += described.descriptor_words
    return values


def _word(emitter: FunctionEmitter, base: str, number: int | str) -> str:
    offset: int | str = number * _WORD_BYTES if isinstance(number, int) else emitter.emit(f"shl i64 {number}, 3")
    pointer = emitter.emit(f"getelementptr i8, ptr {base}, i64 {offset}")
    return emitter.emit(f"load i64, ptr {pointer}, align {_WORD_BYTES}")


def _scalar(emitter: FunctionEmitter, kind: Attribute, bits: str) -> Value:
    if isinstance(kind, IndexType):
        return IndexValue(bits)
    element = element_of(kind)
    if element is I1:
        return Tile(element, 1, ((emitter.emit(f"icmp ne i64 {bits}, 0"),),))
    narrow = bits if element.size == _WORD_BYTES else emitter.emit(f"trunc i64 {bits} to i{8 * element.size}")
    if element.llvm in ("float", "double"):
        narrow = emitter.emit(f"bitcast i{8 * element.size} {narrow} to {element.llvm}")
    return Tile(element, 1, ((narrow,),))


def _buffer(emitter: FunctionEmitter, described: Parameter, element: Element, address: str, word: int) -> BufferValue:
    assert described.extents is not None
    rank = len(described.extents)
    start = emitter.emit(f"add i64 {address}, {_word(emitter, '%descriptors', word)}")
    extents = [
        IndexValue(_word(emitter, "%descriptors", word + 1 + dim), 0, True)
        if extent is None
        else constant_index(extent)
        for dim, extent in enumerate(described.extents)
    ]
    strides: list[int | str] = []
    for dim, stride in enumerate(described.strides):
        if stride is None:
            elements = _word(emitter, "%descriptors", word + 1 + rank + dim)
            strides.append(emitter.scaled(elements, element.size))
        else:
            strides.append(stride * element.size)
    return BufferValue(emitter.emit(f"inttoptr i64 {start} to ptr"), element, tuple(extents), tuple(strides))


def _order_streams(emitter: FunctionEmitter) -> None:
    """Makes non-temporal stores visible before the kernel returns."""
    if emitter.target.has_neon:
        emitter.effect("fence seq_cst")
        return
    emitter.declare("void @llvm.x86.sse.sfence()")
    emitter.effect("call void @llvm.x86.sse.sfence()")


def _module_text(entry: str, emitter: FunctionEmitter, declarations: dict[str, None]) -> str:
    if not entry.replace("_", "").replace(".", "").isalnum():
        raise CompileError(f"{entry!r} cannot be the name of a kernel: letters, digits, _ and . are meant")
    signature = (
        "ptr noalias %table, ptr noalias %descriptors, i64 %worker, i64 %workers, ptr noalias align 64 %workspace"
    )
    width = emitter.target.vector_bits
    attributes = (
        # Where vectors are spilled they shall not straddle cache lines: the caller's stack is aligned to 16 bytes only.
        f'nounwind alignstack={width // 8} "prefer-vector-width"="{width}" "no-trapping-math"="true" '
        '"frame-pointer"="none"'
    )
    return "\n".join(
        (
            *declarations,
            f"define void @{entry}({signature}) #0 {{",
            "entry:",
            emitter.text(),
            "}",
            f"attributes #0 = {{ {attributes} }}",
            "!0 = !{i32 1}",
            "!1 = distinct !{!1, !2}",
            '!2 = !{!"llvm.loop.unroll.disable"}',
            "",
        )
    )

"""One part of a row to and from memory: vectors and scalars, with and without a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tessera.backend.llvm.emission.emitter import zero
from tessera.backend.llvm.emission.generator import Generator
from tessera.backend.llvm.emission.values import Element, Streamed, vector_type
from tessera.backend.llvm.memory.addressing import TileAddress, advance

_LINE_BYTES = 64

PartLoader: TypeAlias = Callable[[Generator, TileAddress, str, int, int, "str | None", "str | None"], str]
"""Reads `lanes` elements of a row from column `first` on: generator, window, row pointer, first, lanes, mask, fill."""


def load(generator: Generator, element: Element, pointer: str, lanes: int) -> str:
    memory = vector_type(element.memory, lanes)
    return _from_memory(
        generator, element, generator.emitter.emit(f"load {memory}, ptr {pointer}, align {element.size}"), lanes
    )


def _from_memory(generator: Generator, element: Element, value: str, lanes: int) -> str:
    if element.kind != "bool":
        return value
    return generator.emitter.emit(
        f"icmp ne {vector_type('i8', lanes)} {value}, {zero(element, lanes) if lanes > 1 else 0}"
    )


def _to_memory(generator: Generator, element: Element, value: str, lanes: int) -> str:
    if element.kind != "bool":
        return value
    return generator.emitter.emit(f"zext {vector_type('i1', lanes)} {value} to {vector_type('i8', lanes)}")


def load_if(generator: Generator, element: Element, pointer: str, inside: str, fill: str | None) -> str:
    """One element, read from a constant that holds `fill` where it lies outside."""
    emitter = generator.emitter
    if inside != "true":
        stored = fill or zero(element, 1)
        constant = emitter.constant(element, {"true": "1", "false": "0"}.get(stored, stored))
        pointer = emitter.pure(f"select i1 {inside}, ptr {pointer}, ptr {constant}")
    return load(generator, element, pointer, 1)


def load_part(
    generator: Generator, at: TileAddress, pointer: str, first: int, lanes: int, mask: str | None, fill: str | None
) -> str:
    emitter, element = generator.emitter, at.element
    pointer = advance(emitter, pointer, first * element.size)
    if mask is None:
        return load(generator, element, pointer, lanes)
    if lanes == 1:
        return load_if(generator, element, pointer, mask, fill)
    memory = vector_type(element.memory, lanes)
    text = emitter.call(
        memory,
        f"@llvm.masked.load.v{lanes}{_suffix(element)}.p0",
        ("ptr", pointer),
        ("i32", str(element.size)),
        (f"<{lanes} x i1>", mask),
        (memory, _passthrough(generator, element, fill, lanes)),
    )
    return _from_memory(generator, element, emitter.emit(text), lanes)


def gather_part(
    generator: Generator, at: TileAddress, pointer: str, first: int, lanes: int, mask: str | None, fill: str | None
) -> str:
    emitter, element, stride = generator.emitter, at.element, at.columns.stride
    if stride == 0 and mask is None:
        return emitter.splat(element.llvm, load(generator, element, pointer, 1), lanes)
    if lanes == 1:
        start = (
            pointer
            if not first
            else emitter.pure(f"getelementptr i8, ptr {pointer}, i64 {_times(generator, stride, first)}")
        )
        return load_if(generator, element, start, mask or "true", fill)
    memory = vector_type(element.memory, lanes)
    text = emitter.call(
        memory,
        f"@llvm.masked.gather.v{lanes}{_suffix(element)}.v{lanes}p0",
        (f"<{lanes} x ptr>", _lane_pointers(generator, pointer, stride, first, lanes)),
        ("i32", str(element.size)),
        (f"<{lanes} x i1>", mask or "splat (i1 true)"),
        (memory, _passthrough(generator, element, fill, lanes)),
    )
    return _from_memory(generator, element, emitter.emit(text), lanes)


def backwards_part(
    generator: Generator, at: TileAddress, pointer: str, first: int, lanes: int, mask: str | None, fill: str | None
) -> str:
    """A part whose elements lie in the opposite order: loaded from its last one on and turned around."""
    if mask is not None or lanes == 1:
        return gather_part(generator, at, pointer, first, lanes, mask, fill)
    start = advance(generator.emitter, pointer, -(first + lanes - 1) * at.element.size)
    value = load(generator, at.element, start, lanes)
    return generator.emitter.shuffle(at.element.llvm, lanes, value, "poison", range(lanes - 1, -1, -1))


def _times(generator: Generator, stride: int | str, count: int) -> int | str:
    return stride * count if isinstance(stride, int) else generator.emitter.pure(f"mul nsw i64 {stride}, {count}")


def _lane_pointers(generator: Generator, pointer: str, stride: int | str, first: int, lanes: int) -> str:
    emitter = generator.emitter
    if isinstance(stride, int):
        offsets = "<" + ", ".join(f"i64 {(first + lane) * stride}" for lane in range(lanes)) + ">"
    else:
        steps = "<" + ", ".join(f"i64 {first + lane}" for lane in range(lanes)) + ">"
        offsets = emitter.pure(f"mul nsw <{lanes} x i64> {steps}, {emitter.splat('i64', stride, lanes)}")
    return emitter.emit(f"getelementptr i8, ptr {pointer}, <{lanes} x i64> {offsets}")


def _suffix(element: Element) -> str:
    return {"float": "f32", "double": "f64"}.get(element.memory, element.memory)


def _passthrough(generator: Generator, element: Element, fill: str | None, lanes: int) -> str:
    if fill is None:
        return "poison"
    stored = {"true": "1", "false": "0"}.get(fill, fill)
    return generator.emitter.splat(element.memory, stored, lanes)


def store_part(
    generator: Generator, at: TileAddress, pointer: str, first: int, lanes: int, mask: str | None, value: str
) -> None:
    emitter, element = generator.emitter, at.element
    pointer = advance(emitter, pointer, first * element.size)
    stored, memory = _to_memory(generator, element, value, lanes), vector_type(element.memory, lanes)
    if mask is None:
        emitter.effect(f"store {memory} {stored}, ptr {pointer}, align {element.size}")
    elif lanes == 1:
        _store_if(generator, element, pointer, mask, stored)
    else:
        kind = f"void @llvm.masked.store.v{lanes}{_suffix(element)}.p0"
        _call(
            generator, kind, (memory, stored), ("ptr", pointer), ("i32", str(element.size)), (f"<{lanes} x i1>", mask)
        )


def scatter_part(
    generator: Generator, at: TileAddress, pointer: str, first: int, lanes: int, mask: str | None, value: str
) -> None:
    emitter, element, stride = generator.emitter, at.element, at.columns.stride
    stored, memory = _to_memory(generator, element, value, lanes), vector_type(element.memory, lanes)
    if lanes == 1:
        start = emitter.pure(f"getelementptr i8, ptr {pointer}, i64 {_times(generator, stride, first)}")
        _store_if(generator, element, start, mask or "true", stored)
        return
    kind = f"void @llvm.masked.scatter.v{lanes}{_suffix(element)}.v{lanes}p0"
    pointers = _lane_pointers(generator, pointer, stride, first, lanes)
    mask = mask or "splat (i1 true)"
    _call(
        generator,
        kind,
        (memory, stored),
        (f"<{lanes} x ptr>", pointers),
        ("i32", str(element.size)),
        (f"<{lanes} x i1>", mask),
    )


def _call(generator: Generator, function: str, *arguments: tuple[str, str]) -> None:
    result, _, name = function.partition(" ")
    generator.emitter.effect(generator.emitter.call(result, name, *arguments))


def _store_if(generator: Generator, element: Element, pointer: str, inside: str, stored: str) -> None:
    def store() -> list[str]:
        generator.emitter.effect(f"store {element.memory} {stored}, ptr {pointer}, align {element.size}")
        return []

    generator.emitter.branch(inside, store)


_PAGE_BYTES = 4096
_PAGES_AHEAD = 2
_WORTH_A_TRANSLATION = 128
"""Bytes of a row of a tile from which on it pays to have its page translated ahead."""


def _translate_ahead(generator: Generator, address: str) -> None:
    """Touches the beginning of a page that is written soon, so that its address is translated by then.

    Nothing else does that for memory on small pages: hardware prefetchers end at a page, and non-temporal stores fetch
    nothing. Zen 4, softmax of 4096 x 4096 in fp32, written to such memory: 7.9 ms without, 6.5 ms with it.
    """
    emitter = generator.emitter
    later = emitter.emit(f"add i64 {address}, {_PAGES_AHEAD * _PAGE_BYTES}")
    page = emitter.emit(f"inttoptr i64 {emitter.emit(f'and i64 {later}, {-_PAGE_BYTES}')} to ptr")
    emitter.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    emitter.effect(f"call void @llvm.prefetch.p0(ptr {page}, i32 0, i32 3, i32 1)")


def store_past_caches(generator: Generator, rows: Sequence[Streamed]) -> None:
    """Non-temporal stores where all addresses are aligned, which these instructions need, else ordinary ones.

    The addresses are tested together: a branch a row would cut what computes them into pieces that cannot overlap.
    """
    emitter = generator.emitter
    generator.streams = True
    tests = []
    for row in rows:
        address = emitter.emit(f"ptrtoint ptr {row.pointer} to i64")
        if sum(row.widths) * row.element.size >= _WORTH_A_TRANSLATION:
            _translate_ahead(generator, address)
        tests.append(emitter.emit(f"and i64 {address}, {_alignment(row) - 1}"))
    low = tests[0]
    for test in tests[1:]:
        low = emitter.emit(f"or i64 {low}, {test}")
    stored = [
        [_to_memory(generator, row.element, part, lanes) for part, lanes in zip(row.parts, row.widths, strict=True)]
        for row in rows
    ]

    def store(aligned: bool) -> list[str]:
        for row, parts in zip(rows, stored, strict=True):
            suffix = f"align {_alignment(row)}, !nontemporal !0" if aligned else f"align {row.element.size}"
            offset = 0
            for value, lanes in zip(parts, row.widths, strict=True):
                target = advance(emitter, row.pointer, offset)
                emitter.effect(f"store {vector_type(row.element.memory, lanes)} {value}, ptr {target}, {suffix}")
                offset += lanes * row.element.size
        return []

    emitter.branch(emitter.emit(f"icmp eq i64 {low}, 0"), lambda: store(True), lambda: store(False))


def _alignment(row: Streamed) -> int:
    """The bytes that the address of a row must be a multiple of."""
    alignment = min(_LINE_BYTES, row.widths[0] * row.element.size)
    return row.element.size if alignment & (alignment - 1) else alignment

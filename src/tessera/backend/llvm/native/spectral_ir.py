"""The LLVM IR text of the kernel that convolves through Fourier transforms, plane after plane, inside the caches.

For each image and group it transforms the channels' planes into scratch memory, adds up their products with the spectra
of one kernel after the other, transforms each sum back and copies what is wanted of it. The one-dimensional transforms
are calls of a library (`runtime/libraries/fourier.py`); rows of zeros and rows that are not wanted are not transformed.

The kernel has the ABI of all CPU kernels; its descriptor words are `WORDS`, in that order, and its workspace holds, per
worker, `depth + 1` planes of complex numbers and one of rows of real ones. A transform that fails leaves NaN in the
results of its plane.
"""

from __future__ import annotations

from typing import Final

from tessera.backend.llvm.native.text import NativeText

WORDS: Final = (
    "x_slot",
    "x_offset",
    "v_slot",
    "v_offset",
    "y_slot",
    "y_offset",
    "images",
    "groups",
    "depth",
    "outputs",  # of a group
    "parts",  # pieces into which the outputs of a group are cut, for workers
    "share",  # outputs of a piece
    "x_image",  # strides of x in bytes
    "x_channel",
    "x_row",
    "x_column",
    "height",
    "width",
    "y_plane",  # bytes of a plane of the result
    "rows",
    "columns",
    "row_step",  # complex numbers from one wanted row to the next
    "column_step",
    "points",  # real numbers of a row
    "half",  # complex numbers of a row
    "plane",  # complex numbers of a plane
    "pitch",  # bytes from one plane of scratch memory to the next
    "forward",  # addresses: the library's functions, and descriptors of its transforms
    "backward",
    "image_rows",
    "all_columns",
    "result_rows",
)
NAME: Final = "tessera_spectral"

_LANES: Final = 16
_VECTOR: Final = f"<{_LANES} x float>"


def spectral_text() -> str:
    """The module of the kernel."""
    text = NativeText()
    w = {word: text.word(place, word) for place, word in enumerate(WORDS)}
    x, v, y = (text.buffer(w[f"{name}_slot"], w[f"{name}_offset"]) for name in "xvy")
    planes = text.mul(w["depth"], w["pitch"])
    total = text.at("%workspace", planes)
    real = text.at(total, w["pitch"])
    units = text.mul(text.mul(w["images"], w["groups"]), w["parts"])

    def unit(turn: str) -> None:
        number = text.plus("%worker", text.mul(turn, "%workers"))
        part = text.let("part", f"srem i64 {number}, {w['parts']}")
        of_image = text.let("u", f"sdiv i64 {number}, {w['parts']}")
        group = text.let("g", f"srem i64 {of_image}, {w['groups']}")
        image = text.let("n", f"sdiv i64 {of_image}, {w['groups']}")
        text.loop(w["depth"], lambda term: _transform(text, w, x, real, image, group, term))
        low = text.mul(part, w["share"])
        high = text.plus(low, w["share"])
        fits = text.let("f", f"icmp slt i64 {high}, {w['outputs']}")
        end = text.let("e", f"select i1 {fits}, i64 {high}, i64 {w['outputs']}")
        text.loop(end, lambda o: _result(text, w, v, y, total, real, image, group, o), first=low)

    # Shares worker, worker + workers, ...
    turns = text.let("t", f"sub i64 {units}, %worker")
    turns = text.plus(turns, text.let("w", "sub i64 %workers, 1"))
    turns = text.let("turns", f"sdiv i64 {turns}, %workers")
    text.loop(turns, unit)
    text.add("ret void")
    return "\n".join([*_DECLARATIONS, *_HEADER, *text.lines, "}", ""])


_DECLARATIONS = (
    f"declare {_VECTOR} @llvm.fma.v{_LANES}f32({_VECTOR}, {_VECTOR}, {_VECTOR})",
    "declare float @llvm.fma.f32(float, float, float)",
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
)
_HEADER = (
    f"define void @{NAME}(ptr %table, ptr %descriptors, i64 %worker, i64 %workers, ptr %workspace) {{",
    "entry:",
)


def _call(text: NativeText, function: str, descriptor: str, *operands: str) -> str:
    """A transform; gives its status, 0 where all is well."""
    pointer = text.let("f", f"inttoptr i64 {function} to ptr")
    handle = text.let("h", f"inttoptr i64 {descriptor} to ptr")
    arguments = ", ".join(f"ptr {operand}" for operand in (handle, *operands))
    return text.let("status", f"call i64 (ptr, ptr, ...) {pointer}({arguments})")


def _transform(text: NativeText, w: dict[str, str], x: str, real: str, image: str, group: str, term: str) -> None:
    """The spectrum of one channel of an image, in its plane of scratch memory."""
    channel = text.plus(text.mul(group, w["depth"]), term)
    source = text.at(x, text.plus(text.mul(image, w["x_image"]), text.mul(channel, w["x_channel"])))
    row_bytes, width_bytes = text.mul(w["points"], 4), text.mul(w["width"], 4)
    rest = text.let("r", f"sub i64 {row_bytes}, {width_bytes}")

    def row(i: str) -> None:
        target, start = text.at(real, text.mul(i, row_bytes)), text.at(source, text.mul(i, w["x_row"]))
        _gather(text, w["x_column"], w["width"], target, start)
        text.add(f"call void @llvm.memset.p0.i64(ptr {text.at(target, width_bytes)}, i8 0, i64 {rest}, i1 false)")

    text.loop(w["height"], row)
    plane = text.at("%workspace", text.mul(term, w["pitch"]))
    first = _call(text, w["forward"], w["image_rows"], real, plane)
    known = text.mul(text.mul(w["height"], w["half"]), 8)
    zeros = text.let("z", f"sub i64 {text.mul(w['plane'], 8)}, {known}")
    text.add(f"call void @llvm.memset.p0.i64(ptr {text.at(plane, known)}, i8 0, i64 {zeros}, i1 false)")
    second = _call(text, w["forward"], w["all_columns"], plane)
    _spoil(text, text.let("any", f"or i64 {first}, {second}"), plane, text.mul(w["plane"], 8))


def _gather(text: NativeText, apart: str, count: str, target: str, start: str) -> None:
    """Copies `count` numbers that lie `apart` bytes from each other."""
    tag = text.name("row")[1:]
    text.add(f"%{tag} = icmp eq i64 {apart}, 4")
    text.add(f"br i1 %{tag}, label %{tag}.dense, label %{tag}.apart")
    text.start(f"{tag}.dense")
    text.add(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {start}, i64 {text.mul(count, 4)}, i1 false)")
    text.add(f"br label %{tag}.done")
    text.start(f"{tag}.apart")

    def element(j: str) -> None:
        value = text.let("e", f"load float, ptr {text.at(start, text.mul(j, apart))}")
        text.add(f"store float {value}, ptr {text.at(target, text.mul(j, 4))}")

    text.loop(count, element)
    text.add(f"br label %{tag}.done")
    text.start(f"{tag}.done")


def _spoil(text: NativeText, status: str, plane: str, nbytes: str) -> None:
    """NaN in all of a plane whose transform failed: every bit set."""
    tag = text.name("failed")[1:]
    text.add(f"%{tag} = icmp ne i64 {status}, 0")
    text.add(f"br i1 %{tag}, label %{tag}.fill, label %{tag}.go")
    text.start(f"{tag}.fill")
    text.add(f"call void @llvm.memset.p0.i64(ptr {plane}, i8 -1, i64 {nbytes}, i1 false)")
    text.add(f"br label %{tag}.go")
    text.start(f"{tag}.go")


def _result(
    text: NativeText,
    w: dict[str, str],
    v: str,
    y: str,
    total: str,
    real: str,
    image: str,
    group: str,
    o: str,
) -> None:
    """One plane of the result: the sum of products, transformed back, without what is not wanted."""
    channel = text.plus(text.mul(group, w["outputs"]), o)
    plane_bytes = text.mul(w["plane"], 8)
    kernels = text.at(v, text.mul(text.mul(channel, w["depth"]), plane_bytes))
    numbers = text.mul(w["plane"], 2)
    whole = text.let("w", f"and i64 {numbers}, {-_LANES}")

    def added(term: str) -> None:
        a, b = text.at("%workspace", text.mul(term, w["pitch"])), text.at(kernels, text.mul(term, plane_bytes))
        fresh = text.let("fresh", f"icmp eq i64 {term}, 0")
        text.loop(whole, lambda i: _vector_product(text, fresh, total, a, b, i), step=_LANES)
        text.loop(numbers, lambda i: _scalar_product(text, fresh, total, a, b, i), step=2, first=whole)

    text.loop(w["depth"], added)
    first = _call(text, w["backward"], w["all_columns"], total)
    second = _call(text, w["backward"], w["result_rows"], total, real)
    results = text.plus(text.mul(image, text.mul(w["groups"], w["outputs"])), channel)
    target = text.at(y, text.mul(results, w["y_plane"]))
    row_bytes, out_bytes = text.mul(w["points"], 4), text.mul(w["columns"], 4)
    apart = text.mul(w["column_step"], 4)

    def row(i: str) -> None:
        source, out = text.at(real, text.mul(i, row_bytes)), text.at(target, text.mul(i, out_bytes))
        _gather(text, apart, w["columns"], out, source)

    text.loop(w["rows"], row)
    _spoil(text, text.let("any", f"or i64 {first}, {second}"), target, w["y_plane"])


def _vector_product(text: NativeText, fresh: str, total: str, a: str, b: str, i: str) -> None:
    """Eight products of complex numbers, added to what is there: (a + bi)(c + di) by two fused operations."""
    nbytes = text.mul(i, 4)
    left, right, sums = (
        text.let("v", f"load {_VECTOR}, ptr {text.at(base, nbytes)}, align 4") for base in (a, b, total)
    )
    before = text.let("s", f"select i1 {fresh}, {_VECTOR} zeroinitializer, {_VECTOR} {sums}")
    lanes = range(_LANES)
    real = _shuffled(text, right, [lane & ~1 for lane in lanes])
    imaginary = _shuffled(text, right, [lane | 1 for lane in lanes])
    swapped = _shuffled(text, left, [lane ^ 1 for lane in lanes])
    signs = ", ".join("float -1.0" if lane % 2 == 0 else "float 1.0" for lane in lanes)
    signed = text.let("q", f"fmul {_VECTOR} {imaginary}, <{signs}>")
    fma = f"call {_VECTOR} @llvm.fma.v{_LANES}f32"
    half = text.let("v", f"{fma}({_VECTOR} {swapped}, {_VECTOR} {signed}, {_VECTOR} {before})")
    made = text.let("v", f"{fma}({_VECTOR} {left}, {_VECTOR} {real}, {_VECTOR} {half})")
    text.add(f"store {_VECTOR} {made}, ptr {text.at(total, nbytes)}, align 4")


def _shuffled(text: NativeText, value: str, lanes: list[int]) -> str:
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    return text.let("v", f"shufflevector {_VECTOR} {value}, {_VECTOR} poison, <{_LANES} x i32> <{mask}>")


def _scalar_product(text: NativeText, fresh: str, total: str, a: str, b: str, i: str) -> None:
    nbytes, after = text.mul(i, 4), text.mul(text.plus(i, 1), 4)
    (p, q), (r, s), (t, u) = (_pair_at(text, base, nbytes, after) for base in (a, b, total))
    t, u = (text.let("e", f"select i1 {fresh}, float 0.0, float {each}") for each in (t, u))
    minus = text.let("e", f"fneg float {q}")
    for first, second, before, place in ((minus, s, t, nbytes), (q, r, u, after)):
        half = text.let("e", f"call float @llvm.fma.f32(float {first}, float {second}, float {before})")
        other = r if place is nbytes else s
        made = text.let("e", f"call float @llvm.fma.f32(float {p}, float {other}, float {half})")
        text.add(f"store float {made}, ptr {text.at(total, place)}")


def _pair_at(text: NativeText, base: str, nbytes: str, after: str) -> tuple[str, str]:
    real, imaginary = [text.let("e", f"load float, ptr {text.at(base, place)}") for place in (nbytes, after)]
    return real, imaginary

"""The LLVM IR text of routines that do small calls of a library in its place: parts taken and replaced at places,
indices checked, rows ordered and added up, numbers counted. A call of torch from a plan takes 20 to 90 us, whatever it
does.

Each has the ABI of all CPU kernels. Its first descriptor word is the address of the kernel that calls the library. A
routine calls that, before it has written what it reads, where it finds what it leaves to the library: an index out of
range, say, which is reported there. Then follow two words (slot and offset) for each operand and each result, and what
`_ROUTINES` names. Operands and results are contiguous. One worker does all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tessera.backend.llvm.native.text import NativeText

Words = Mapping[str, str]
"""The values of a routine's words by name, and the addresses of its operands."""

_LIBRARY: Final = "library"


def calls_text() -> str:
    """The module of all routines."""
    functions = [_function(name, *routine) for name, routine in _ROUTINES.items()]
    return "\n".join([*_DECLARATIONS, *functions])


_DECLARATIONS: Final = (
    "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
)


def routine_name(routine: str) -> str:
    """The symbol of a routine."""
    return f"tessera_call_{routine}"


def _function(name: str, operands: str, words: str, body: Callable[[NativeText, Words], None]) -> str:
    text = NativeText()
    known: dict[str, str] = {}
    for place, operand in enumerate(operands.split()):
        known[operand] = text.buffer(text.word(1 + 2 * place), text.word(2 + 2 * place))
    first = 1 + 2 * len(operands.split())
    for place, word in enumerate(words.split()):
        known[word] = text.word(first + place, word)
    body(text, known)
    text.add("ret void")
    text.start(_LIBRARY)
    pointer = text.let("f", f"inttoptr i64 {text.word(0)} to ptr")
    text.add(f"call void {pointer}(ptr %table, ptr %descriptors, i64 %worker, i64 %workers, ptr %workspace)")
    text.add("ret void")
    arguments = "ptr %table, ptr %descriptors, i64 %worker, i64 %workers, ptr %workspace"
    return "\n".join([f"define void @{routine_name(name)}({arguments}) {{", "entry:", *text.lines, "}", ""])


def _element(text: NativeText, base: str, number: str, kind: str) -> str:
    return text.let("v", f"load {kind}, ptr {_place(text, base, number, kind)}")


def _place(text: NativeText, base: str, number: str, kind: str) -> str:
    return text.let("p", f"getelementptr {kind}, ptr {base}, i64 {number}")


def _copy(text: NativeText, target: str, source: str, nbytes: str) -> None:
    text.add(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)")


# -- places -----------------------------------------------------------------------------------------------------------


def _all_within(text: NativeText, index: str, count: str, extent: str) -> None:
    """Leaves it to the library unless all indices name one of so many places."""

    def check(i: str) -> None:
        inside = text.let("in", f"icmp ult i64 {_element(text, index, i, 'i64')}, {extent}")
        text.go_on_if(inside, _LIBRARY)

    text.loop(count, check)


def _taken(kind: str, text: NativeText, w: Words) -> None:
    """Parts of `nbytes` bytes at places of the rows of x; of a `kind`, where they are one element each."""
    _all_within(text, w["index"], w["count"], w["extent"])
    row = text.mul(w["extent"], w["nbytes"])

    def each_row(o: str) -> None:
        source = text.at(w["x"], text.mul(o, row))
        target = text.at(w["y"], text.mul(text.mul(o, w["count"]), w["nbytes"]))

        def part(i: str) -> None:
            place = _element(text, w["index"], i, "i64")
            if kind:
                text.add(
                    f"store {kind} {_element(text, source, place, kind)}, ptr {_place(text, target, i, kind)}, align 1"
                )
            else:
                start = text.at(source, text.mul(place, w["nbytes"]))
                _copy(text, text.at(target, text.mul(i, w["nbytes"])), start, w["nbytes"])

        text.loop(w["count"], part)

    text.loop(w["outer"], each_row)


def _replaced(kind: str, text: NativeText, w: Words) -> None:
    """x with parts of `nbytes` bytes replaced, the last one at a place. Of a `kind`, x is one element repeated; else
    what has more than `most` bytes is not copied here.
    """
    _all_within(text, w["index"], w["count"], w["extent"])
    row = text.mul(w["extent"], w["nbytes"])
    whole = text.mul(w["outer"], row)
    if kind:
        repeated = text.let("v", f"load {kind}, ptr {w['x']}")
        elements = text.let("n", f"udiv i64 {whole}, {w['itemsize']}")
        text.loop(
            elements, lambda i: text.add(f"store {kind} {repeated}, ptr {_place(text, w['y'], i, kind)}, align 1")
        )
    else:
        there = text.let("there", f"icmp eq ptr {w['x']}, {w['y']}")
        small = text.let("small", f"icmp sle i64 {whole}, {w['most']}")
        text.go_on_if(text.let("either", f"or i1 {there}, {small}"), _LIBRARY)
        text.when(text.let("other", f"xor i1 {there}, true"), lambda: _copy(text, w["y"], w["x"], whole))

    def each_row(o: str) -> None:
        target = text.at(w["y"], text.mul(o, row))
        source = text.at(w["source"], text.mul(text.mul(o, w["count"]), w["nbytes"]))

        def part(i: str) -> None:
            place = _element(text, w["index"], i, "i64")
            start = text.at(source, text.mul(i, w["nbytes"]))
            _copy(text, text.at(target, text.mul(place, w["nbytes"])), start, w["nbytes"])

        text.loop(w["count"], part)

    text.loop(w["outer"], each_row)


def _checked(text: NativeText, w: Words) -> None:
    """Indices as they are, or from the end where `from_end` is 1; `ignores` says whether `ignored` is none."""

    def counted(v: str) -> str:
        negative = text.let("neg", f"icmp slt i64 {v}, 0")
        added = text.mul(w["extent"], w["from_end"])
        return text.let("c", f"select i1 {negative}, i64 {text.plus(v, added)}, i64 {v}")

    def check(i: str) -> None:
        v = _element(text, w["index"], i, "i64")
        inside = text.let("in", f"icmp ult i64 {counted(v)}, {w['extent']}")
        same = text.let("same", f"icmp eq i64 {v}, {w['ignored']}")
        ignores = text.let("ignores", f"icmp ne i64 {w['ignores']}, 0")
        ignored = text.let("ig", f"and i1 {same}, {ignores}")
        text.go_on_if(text.let("fine", f"or i1 {inside}, {ignored}"), _LIBRARY)

    def write(i: str) -> None:
        found = counted(_element(text, w["index"], i, "i64"))
        text.add(f"store i64 {found}, ptr {_place(text, w['y'], i, 'i64')}")

    text.loop(w["count"], check)
    text.loop(w["count"], write)


# -- rows -------------------------------------------------------------------------------------------------------------


def _added_up(kind: str, widened: str, text: NativeText, w: Words) -> None:
    """Running sums of the rows of x in 64 bits."""

    def each_row(r: str) -> None:
        start = text.mul(r, w["extent"])
        x, y = _place(text, w["x"], start, kind), _place(text, w["y"], start, "i64")
        text.add(f"store i64 0, ptr {w['total']}")

        def step(i: str) -> None:
            v = _element(text, x, i, kind)
            wide = v if kind == "i64" else text.let("w", f"{widened} {kind} {v} to i64")
            total = text.plus(text.let("t", f"load i64, ptr {w['total']}"), wide)
            text.add(f"store i64 {total}, ptr {w['total']}")
            text.add(f"store i64 {total}, ptr {_place(text, y, i, 'i64')}")

        text.loop(w["extent"], step)

    w = {**w, "total": text.let("total", "alloca i64")}
    text.loop(w["rows"], each_row)


def _ordered(kind: str, descending: bool, text: NativeText, w: Words) -> None:
    """Rows of x in order, and where their elements come from: each goes before those it precedes. NaN is greatest."""
    all_of_them = {**w, "kept": w["extent"]}
    text.loop(w["rows"], lambda row: _inserted(text, kind, descending, False, all_of_them, row))


def _chosen(kind: str, descending: bool, text: NativeText, w: Words) -> None:
    """The first `kept` of each row in order. Equal ones, whose order is torch's, and NaN are left to the library."""
    text.loop(w["rows"], lambda row: _inserted(text, kind, descending, True, w, row))


def _inserted(text: NativeText, kind: str, descending: bool, distinct: bool, w: Words, row: str) -> None:
    """The first `kept` elements of a row of x in order, into which each element is inserted."""
    source, target = text.mul(row, w["extent"]), text.mul(row, w["kept"])
    x, y = _place(text, w["x"], source, kind), _place(text, w["y"], target, kind)
    places = _place(text, w["places"], target, "i64")

    def move(value: str, origin: str, to: str) -> None:
        text.add(f"store {kind} {value}, ptr {_place(text, y, to, kind)}")
        text.add(f"store i64 {origin}, ptr {_place(text, places, to, 'i64')}")

    def insert(i: str) -> None:
        v = _element(text, x, i, kind)
        if distinct and kind == "float":
            text.go_on_if(text.let("number", f"fcmp ord float {v}, {v}"), _LIBRARY)
        early = text.let("early", f"icmp slt i64 {i}, {w['kept']}")
        known = text.let("known", f"select i1 {early}, i64 {i}, i64 {w['kept']}")
        tag, before = text.name("insert")[1:], text.block
        at, below = f"%{tag}.at", f"%{tag}.below"
        text.add(f"br label %{tag}")
        text.start(tag)
        text.add(f"{at} = phi i64 [ {known}, %{before} ], [ {below}, %{tag}.moved ]")
        text.add(f"%{tag}.any = icmp sgt i64 {at}, 0")
        text.add(f"br i1 %{tag}.any, label %{tag}.look, label %{tag}.put")
        text.start(f"{tag}.look")
        text.add(f"{below} = sub i64 {at}, 1")
        other = _element(text, y, below, kind)
        text.add(f"br i1 {_precedes(text, kind, descending, v, other)}, label %{tag}.before, label %{tag}.behind")
        text.start(f"{tag}.before")
        fits = text.let("fits", f"icmp slt i64 {at}, {w['kept']}")
        text.when(fits, lambda: move(other, _element(text, places, below, "i64"), at))
        text.add(f"br label %{tag}.moved")
        text.start(f"{tag}.moved")
        text.add(f"br label %{tag}")
        text.start(f"{tag}.behind")
        if distinct:
            differs = f"fcmp one float {v}, {other}" if kind == "float" else f"icmp ne {kind} {v}, {other}"
            text.go_on_if(text.let("differs", differs), _LIBRARY)
        text.add(f"br label %{tag}.put")
        text.start(f"{tag}.put")
        text.when(text.let("fits", f"icmp slt i64 {at}, {w['kept']}"), lambda: move(v, i, at))

    text.loop(w["extent"], insert)


def _precedes(text: NativeText, kind: str, descending: bool, a: str, b: str) -> str:
    if kind != "float":
        return text.let("pre", f"icmp {'sgt' if descending else 'slt'} {kind} {a}, {b}")
    less, more = (b, a) if descending else (a, b)
    number = text.let("number", f"fcmp ord float {less}, {less}")
    below = text.let("below", f"fcmp ult float {less}, {more}")  # true of NaN, too
    return text.let("pre", f"and i1 {number}, {below}")


# -- counts -----------------------------------------------------------------------------------------------------------


def _counted(text: NativeText, w: Words) -> None:
    """How many numbers are in each of `bins` of one width from `least` to `most`, whose bits the words are; rounded as
    torch does (ATen/native/cpu/HistogramKernel.cpp).
    """
    least, most = (
        text.let(name, f"bitcast i32 {text.let('bits', f'trunc i64 {w[name]} to i32')} to float")
        for name in ("least", "most")
    )
    width = text.let("width", f"fsub float {most}, {least}")
    bins = text.let("bins", f"sitofp i64 {w['bins']} to float")
    last = text.let("last", f"sub i64 {w['bins']}, 1")
    text.add(f"call void @llvm.memset.p0.i64(ptr {w['y']}, i8 0, i64 {text.mul(w['bins'], 4)}, i1 false)")

    def count(i: str) -> None:
        v = _element(text, w["x"], i, "float")
        above, below = (
            text.let("in", f"fcmp {how} float {v}, {bound}") for how, bound in (("oge", least), ("ole", most))
        )

        def add() -> None:
            scaled = text.let("s", f"fmul float {text.let('d', f'fsub float {v}, {least}')}, {bins}")
            number = text.let("n", f"fptosi float {text.let('q', f'fdiv float {scaled}, {width}')} to i64")
            beyond = text.let("b", f"icmp sgt i64 {number}, {last}")
            bin_ = _place(text, w["y"], text.let("bin", f"select i1 {beyond}, i64 {last}, i64 {number}"), "float")
            old = text.let("old", f"load float, ptr {bin_}")
            text.add(f"store float {text.let('new', f'fadd float {old}, 1.0')}, ptr {bin_}")

        text.when(text.let("inside", f"and i1 {above}, {below}"), add)

    text.loop(w["count"], count)


_TAKEN: Final = ("x index y", "outer extent nbytes count")
_REPLACED: Final = ("x index source y", "outer extent nbytes count itemsize most")
_ROWS: Final = "rows extent"
_KINDS: Final = (("fp32", "float"), ("int32", "i32"), ("int64", "i64"))
_ROUTINES: Final[Mapping[str, tuple[str, str, Callable[[NativeText, Words], None]]]] = {
    "taken": (*_TAKEN, partial(_taken, "")),
    **{f"taken_{size}": (*_TAKEN, partial(_taken, f"i{8 * size}")) for size in (1, 2, 4, 8)},
    "replaced": (*_REPLACED, partial(_replaced, "")),
    **{f"replaced_{size}": (*_REPLACED, partial(_replaced, f"i{8 * size}")) for size in (1, 2, 4, 8)},
    "checked": ("index y", "count extent from_end ignores ignored", _checked),
    "counted": ("x y", "count bins least most", _counted),
    **{
        f"added_up_{name}": ("x y", _ROWS, partial(_added_up, kind, widened))
        for name, kind, widened in (("bool", "i8", "zext"), ("int32", "i32", "sext"), ("int64", "i64", ""))
    },
    **{
        f"{way}_{name}": ("x y places", _ROWS, partial(_ordered, kind, way == "descending"))
        for name, kind in _KINDS
        for way in ("ascending", "descending")
    },
    **{
        f"{way}_{name}": ("x y places", f"{_ROWS} kept", partial(_chosen, kind, way == "greatest"))
        for name, kind in _KINDS
        for way in ("least", "greatest")
    },
}
"""By routine: its operands and results, its words, and what writes it."""

"""Writing the LLVM IR of one function: instructions, structured control, and address arithmetic in the right place.

The text is a list of lines. Entering a loop leaves an empty *slot* before it; an instruction that depends only on what
is defined outside the loop is written into that slot, once (`pure`). Loop-invariant code motion and common
subexpression elimination of index arithmetic are thus done while writing, and LLVM's passes for them, which cost more
time than code generation itself, need not run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tessera.backend.llvm.emission.values import Element, IndexValue, vector_type
from tessera.target import Target

_NAMES = re.compile(r"%[\w.]+")
_UNROLL_DISABLED = ", !llvm.loop !1"

Lines = list["str | Lines"]


@dataclass(slots=True)
class _Level:
    """A body inside another: of a loop, whose slot lies before it, or of a conditional's arm, which has none."""

    slot: Lines | None
    memo: dict[str, str] = field(default_factory=dict)


class FunctionEmitter:
    """The cursor of one function: the lines so far, the current basic block, the nest of bodies around it."""

    def __init__(self, target: Target, declarations: dict[str, None]) -> None:
        self.target = target
        self.lanes = target.vector_bits // 32
        self.lines: Lines = []
        self.block = "entry"
        self._declarations = declarations
        self._count = 0
        self._levels = [_Level(None)]
        self._depth: dict[str, int] = {}

    # -- instructions -------------------------------------------------------------------------------------------------

    def fresh(self, prefix: str = "v") -> str:
        """A new name, defined here."""
        self._count += 1
        name = f"%{prefix}{self._count}"
        self._depth[name] = len(self._levels) - 1
        return name

    def emit(self, text: str) -> str:
        """Appends an instruction that has a result and gives back its fresh name."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def woven(self, makers: Sequence[Callable[[], str]]) -> list[str]:
        """The results of `makers`, which write alike and do not need each other, their instructions in turn.

        A processor looks some sixty vector instructions ahead: of two long chains one after the other it sees only one
        at a time, and waits for it.
        """
        results: list[str] = []
        strands: list[Lines] = []
        for make in makers:
            start = len(self.lines)
            results.append(make())
            strands.append(self.lines[start:])
            del self.lines[start:]
        if len({len(strand) for strand in strands}) > 1:  # one of them wrote what the others share
            strands = [list(itertools.chain(*strands))]
        self.lines += itertools.chain(*zip(*strands, strict=True))
        return results

    def effect(self, text: str) -> None:
        """Appends an instruction without a result."""
        self.lines.append(f"  {text}")

    def pure(self, text: str) -> str:
        """The result of an instruction that may be computed anywhere: as far out as its operands allow, and once.

        It stays in the arm of a conditional unless a loop inside that arm stands between, so that the arms that are
        rarely taken cost nothing elsewhere.
        """
        for level in self._levels:
            if (known := level.memo.get(text)) is not None:
                return known
        depth = max((self._depth.get(name, 0) for name in _NAMES.findall(text)), default=0)
        for inner in range(depth + 1, len(self._levels)):
            slot = self._levels[inner].slot
            if slot is not None:
                self._count += 1
                name = f"%v{self._count}"
                self._depth[name] = inner - 1
                slot.append(f"  {name} = {text}")
                self._levels[inner - 1].memo[text] = name
                return name
        name = self.emit(text)
        self._levels[-1].memo[text] = name
        return name

    def depth(self, name: str) -> int:
        """How many bodies are around the definition of a name."""
        return self._depth.get(name, 0)

    @property
    def current_depth(self) -> int:
        """How many bodies are around the cursor."""
        return len(self._levels) - 1

    def declare(self, signature: str) -> None:
        """Makes sure that the module has this declaration, `declare` left out, once."""
        self._declarations[f"declare {signature}"] = None

    def define(self, function: str) -> None:
        """Makes sure that the module has this function, given as text, once."""
        self._declarations[function] = None

    def constant(self, element: Element, literal: str) -> str:
        """The address of a constant in memory."""
        name = f"@{element.name}.{re.sub('[^0-9A-Za-z]', '_', literal)}"
        self._declarations[f"{name} = private unnamed_addr constant {element.memory} {literal}"] = None
        return name

    def constant_row(self, element: Element, literal: str, lanes: int) -> str:
        """The address of `lanes` elements in memory that all have one value."""
        stored = {"true": "1", "false": "0"}.get(literal, literal)
        kind = f"[{lanes} x {element.memory}]"
        name = f"@{element.name}.{lanes}.{re.sub('[^0-9A-Za-z]', '_', stored)}"
        values = ", ".join([f"{element.memory} {stored}"] * lanes)
        self._declarations[f"{name} = private unnamed_addr constant {kind} [{values}], align 64"] = None
        return name

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """The call, as an instruction's text, of a declared function with `(type, operand)` arguments."""
        self.declare(f"{result} {function}({', '.join(kind for kind, _ in arguments)})")
        return f"call {result} {function}({', '.join(f'{kind} {operand}' for kind, operand in arguments)})"

    # -- index arithmetic ---------------------------------------------------------------------------------------------

    def operand(self, index: IndexValue) -> str:
        """The whole value of an index as an operand."""
        if index.base is None:
            return str(index.offset)
        return index.base if index.offset == 0 else self.pure(f"add nsw i64 {index.base}, {index.offset}")

    def add(self, a: IndexValue, b: IndexValue) -> IndexValue:
        """a + b"""
        if b.base is None:
            return a.plus(b.offset)
        if a.base is None:
            return b.plus(a.offset)
        total = self.pure(f"add nsw i64 {a.base}, {b.base}")
        return IndexValue(total, a.offset + b.offset, a.natural and b.natural)

    def subtract(self, a: IndexValue, b: IndexValue) -> IndexValue:
        """a - b"""
        if b.base is None:
            return a.plus(-b.offset)
        if a.base == b.base:
            return IndexValue(None, a.offset - b.offset, a.offset >= b.offset)
        return IndexValue(self.pure(f"sub nsw i64 {a.base or 0}, {b.base}"), a.offset - b.offset)

    def multiply(self, a: IndexValue, b: IndexValue) -> IndexValue:
        """a * b"""
        if a.base is None:
            a, b = b, a
        if b.base is None:
            if a.base is None or b.offset == 0:
                return IndexValue(None, a.offset * b.offset, a.offset * b.offset >= 0)
            product = self.scaled(a.base, b.offset)
            return IndexValue(product, a.offset * b.offset, a.natural and b.offset >= 0)
        product = self.pure(f"mul nsw i64 {self.operand(a)}, {self.operand(b)}")
        return IndexValue(product, 0, a.natural and b.natural)

    def scaled(self, name: str, factor: int | str) -> str:
        """name * factor"""
        return name if factor == 1 else self.pure(f"mul nsw i64 {name}, {factor}")

    def minimum(self, a: IndexValue, b: IndexValue) -> IndexValue:
        """The smaller one"""
        return self._extremum("smin", a, b, a.natural and b.natural)

    def maximum(self, a: IndexValue, b: IndexValue) -> IndexValue:
        """The larger one"""
        return self._extremum("smax", a, b, a.natural or b.natural)

    def _extremum(self, name: str, a: IndexValue, b: IndexValue, natural: bool) -> IndexValue:
        if a.base == b.base:
            return min(a, b, key=_offset) if name == "smin" else max(a, b, key=_offset)
        text = self.call("i64", f"@llvm.{name}.i64", ("i64", self.operand(a)), ("i64", self.operand(b)))
        return IndexValue(self.pure(text), 0, natural)

    def below(self, a: IndexValue, b: IndexValue) -> str:
        """The i1 `a < b`."""
        if a.base == b.base:
            return "true" if a.offset < b.offset else "false"
        if a.base is not None:
            # The known parts meet on the side that varies less, where the sum is made once.
            a, b = IndexValue(a.base), b.plus(-a.offset)
        return self.pure(f"icmp slt i64 {self.operand(a)}, {self.operand(b)}")

    def both(self, *conditions: str) -> str:
        """The i1 that all conditions hold."""
        if "false" in conditions:
            return "false"
        open_conditions = [condition for condition in conditions if condition != "true"]
        if not open_conditions:
            return "true"
        result = open_conditions[0]
        for condition in open_conditions[1:]:
            result = self.pure(f"and i1 {result}, {condition}")
        return result

    # -- vectors ------------------------------------------------------------------------------------------------------

    def splat(self, kind: str, operand: str, lanes: int) -> str:
        """The scalar in every lane."""
        if lanes == 1:
            return operand
        if not operand.startswith("%"):
            return operand if operand in ("zeroinitializer", "poison") else f"splat ({kind} {operand})"
        vector = vector_type(kind, lanes)
        first = self.pure(f"insertelement {vector} poison, {kind} {operand}, i64 0")
        return self.pure(f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, kind: str, lanes: int, a: str, b: str, order: Sequence[int]) -> str:
        """The lanes `order` of a and b, both of `lanes`; one lane comes out as the scalar."""
        vector = vector_type(kind, lanes)
        if len(order) == 1:
            return self.emit(f"extractelement {vector} {a if order[0] < lanes else b}, i64 {order[0] % lanes}")
        if lanes == 1:
            a, b = (self._one_lane(kind, operand) for operand in (a, b))
            vector = f"<1 x {kind}>"
        picks = ", ".join(f"i32 {lane}" for lane in order)
        return self.emit(f"shufflevector {vector} {a}, {vector} {b}, <{len(order)} x i32> <{picks}>")

    def _one_lane(self, kind: str, operand: str) -> str:
        if operand == "poison":
            return operand
        return self.emit(f"insertelement <1 x {kind}> poison, {kind} {operand}, i64 0")

    # -- control ------------------------------------------------------------------------------------------------------

    def start(self, label: str) -> None:
        """Begins a basic block."""
        self.lines.append(f"{label}:")
        self.block = label

    def label(self, prefix: str) -> str:
        """A new label."""
        self._count += 1
        return f"{prefix}{self._count}"

    @contextmanager
    def _body(self, slot: Lines | None) -> Iterator[None]:
        self._levels.append(_Level(slot))
        try:
            yield
        finally:
            self._levels.pop()

    def loop(
        self,
        lower: IndexValue,
        upper: IndexValue,
        step: int,
        carried: Sequence[tuple[str, str]],
        body: Callable[[IndexValue, list[str]], Sequence[str]],
        once: bool = False,
    ) -> list[str]:
        """A counted loop. `carried` are `(type, initial)`; `body` maps index and carried names to the new values.

        It is tested at the bottom, behind a guard where it may run no time at all (`once` promises that it runs).
        Gives back the carried values after the loop.
        """
        slot: Lines = []
        self.lines.append(slot)
        guarded = not once and self.below(lower, upper) != "true"
        first, last = self.operand(lower), self.operand(upper)
        head, leave = self.label("loop"), self.label("done")
        before = self.block
        if guarded:
            self.effect(f"br i1 {self.below(lower, upper)}, label %{head}, label %{leave}")
        else:
            self.effect(f"br label %{head}")
        self.start(head)
        phis: Lines = []
        self.lines.append(phis)
        with self._body(slot):
            iv = self.fresh("i")
            names = [self.fresh("c") for _ in carried]
            new = body(IndexValue(iv, 0, lower.natural), names)
            following = self.emit(f"add nsw i64 {iv}, {step}")
            more = self.emit(f"icmp slt i64 {following}, {last}")
            latch = self.block
            self.effect(f"br i1 {more}, label %{head}, label %{leave}{_UNROLL_DISABLED}")
        phis.append(f"  {iv} = phi i64 [ {first}, %{before} ], [ {following}, %{latch} ]")
        for name, (kind, initial), value in zip(names, carried, new, strict=True):
            phis.append(f"  {name} = phi {kind} [ {initial}, %{before} ], [ {value}, %{latch} ]")
        self.start(leave)
        if not guarded:
            return self._adopt(new)
        return [
            self.emit(f"phi {kind} [ {initial}, %{before} ], [ {value}, %{latch} ]")
            for (kind, initial), value in zip(carried, new, strict=True)
        ]

    def _adopt(self, names: Sequence[str]) -> list[str]:
        """Names of a body that runs at least once, which stay visible behind it."""
        for name in names:
            if name in self._depth:
                self._depth[name] = min(self._depth[name], len(self._levels) - 1)
        return list(names)

    def branch(
        self,
        condition: str,
        then: Callable[[], Sequence[str]],
        otherwise: Callable[[], Sequence[str]] | None = None,
        types: Sequence[str] = (),
    ) -> list[str]:
        """A conditional; both arms give values of `types`, which are merged and given back."""
        if condition in ("true", "false"):
            taken = then if condition == "true" else otherwise
            return list(taken()) if taken else []
        yes, no, merge = self.label("then"), self.label("else"), self.label("merge")
        self.effect(f"br i1 {condition}, label %{yes}, label %{no if otherwise else merge}")
        ends = []
        for label, arm in ((yes, then), (no, otherwise)):
            if arm is None:
                continue
            self.start(label)
            with self._body(None):
                values = arm()
            ends.append((self.block, values))
            self.effect(f"br label %{merge}")
        self.start(merge)
        if not types:
            return []
        (first, a), (second, b) = ends
        return [
            self.emit(f"phi {kind} [ {x}, %{first} ], [ {y}, %{second} ]")
            for kind, x, y in zip(types, a, b, strict=True)
        ]

    def text(self) -> str:
        """The lines of the function's body."""
        return "\n".join(_flatten(self.lines))


def _offset(index: IndexValue) -> int:
    return index.offset


def _flatten(lines: Lines) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from _flatten(line)


def zero(element: Element, lanes: int) -> str:
    """Zero in every lane, as an operand."""
    if lanes > 1:
        return "zeroinitializer"
    return {"float": "0.0", "double": "0.0", "i1": "false"}.get(element.llvm, "0")

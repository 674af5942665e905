"""Writing the body of one Triton function: names, inlined expressions, lines.

Every value of the Tile IR is a Python expression. One that is used once, in the block that makes it, is written where
it is used; all others get a name. Python names live as long as the function, so each value's name is its own.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.dialects.builtin import VectorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.backend.triton.printing.types import TritonElement, element_of
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile

_LONGEST_INLINE = 50
"""Characters up to which an expression is written inside another."""
_LONGEST_YIELDED = 90
_LONGEST_LINE = 110
_INDENT = "    "
_BARE = re.compile(r"[\w.]+(\(.*\))?")


@dataclass(frozen=True)
class Text:
    """A value as Python text. `is_bare` texts need no parentheses as operands; `literal` is set for constants."""

    text: str
    is_bare: bool = True
    literal: str | None = None

    @property
    def operand(self) -> str:
        """The text as an operand of an operator."""
        return self.text if self.is_bare else f"({self.text})"


Handler = Callable[["Printer", Operation], None]
"""Writes one operation of the class that it stands under in a table."""


@dataclass
class _Body:
    """An open body: the number of its header's line, and the lanes that have been named in it."""

    header: int
    lanes: dict[tuple[SSAValue, int], str] = field(default_factory=dict)


class Printer:
    """The cursor of one function, and what has been written so far."""

    def __init__(self, handlers: Mapping[type[Operation], Handler], reserved: set[str]) -> None:
        self.handlers = handlers
        self.lines: list[str] = []
        self.helpers: set[str] = set()
        """Names of the helper functions that the text calls."""
        self._taken = set(reserved)
        self._texts: dict[SSAValue, Text] = {}
        self._levels: dict[SSAValue, int] = {}
        self._bodies = [_Body(0)]

    # -- lines --------------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Appends a line at the current indentation."""
        self.lines.append(_INDENT * len(self._bodies) + text)

    def call(self, head: str, arguments: Sequence[str]) -> None:
        """Appends a line that ends in a call, `head(arguments)`: an argument per line where one line is too long."""
        joined = f"{head}({', '.join(arguments)})"
        if len(joined) + len(_INDENT) * len(self._bodies) <= _LONGEST_LINE:
            self.line(joined)
            return
        self.line(f"{head}(")
        for argument in arguments:
            self.line(f"{_INDENT}{argument},")
        self.line(")")

    @contextmanager
    def nested(self, header: str, after: int | None = None) -> Iterator[int]:
        """Lines inside the `with` are the body of `header`; an empty body becomes `pass`.

        Yields the number of the header's line. An `else:` gives that of its `if` as `after`: nothing goes between them.
        """
        number = len(self.lines) if after is None else after
        self.line(header)
        start = len(self.lines)
        body = _Body(number)
        self._bodies.append(body)
        yield number
        if len(self.lines) == start:
            self.line("pass")
        self._bodies.pop()

    def _line_at(self, level: int, text: str) -> None:
        """A line in the body `level`, before whatever has been opened inside it."""
        if level == len(self._bodies) - 1:
            self.line(text)
            return
        self.lines.insert(self._bodies[level + 1].header, _INDENT * (level + 1) + text)
        for inner in self._bodies[level + 1 :]:
            inner.header += 1

    # -- values -------------------------------------------------------------------------------------------------------

    def name(self, hint: str | None) -> str:
        """A fresh Python name like `hint`."""
        stem = re.sub(r"\W", "_", hint or "v")
        if not stem.isidentifier() or keyword.iskeyword(stem):
            stem = f"v{stem}"
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name

    def reserve(self, names: set[str]) -> None:
        """Keeps names from being given to values."""
        self._taken |= names

    def define(self, value: SSAValue, text: Text) -> None:
        """Says how `value` is written from here on."""
        self._texts[value] = text
        self._levels[value] = len(self._bodies) - 1

    def bind(self, value: SSAValue, text: str, inline: bool = True, literal: str | None = None) -> None:
        """Defines `value` by an expression: written where it is used if it is short and used once, here; else named."""
        expression = Text(text, is_bare=_BARE.fullmatch(text) is not None and _closes_last(text), literal=literal)
        longest = _LONGEST_YIELDED if _is_yielded(value) else _LONGEST_INLINE
        if literal is not None or (inline and len(text) <= longest and _used_once_beside(value)):
            self.define(value, expression)
            return
        name = self.name(value.name_hint)
        self.line(f"{name} = {text}")
        self.define(value, Text(name))

    def get(self, value: SSAValue) -> Text:
        """How `value` is written. Raises CompileError for memory, which is read by loads only."""
        text = self._texts.get(value)
        if text is None:
            raise CompileError(f"Triton cannot express this use of {value.type}")
        return text

    def text(self, value: SSAValue) -> str:
        """`value` as an argument of a call."""
        return self.get(value).text

    def operand(self, value: SSAValue) -> str:
        """`value` as an operand of an operator."""
        return self.get(value).operand

    def lanes(self, index: SSAValue, size: int) -> str:
        """The name of `index + 0, 1, ... size - 1`, which is written once, as far out as the index is known."""
        level = self._levels[index] if self.get(index).literal is None else 0
        known = self._bodies[level].lanes
        if (index, size) not in known:
            at = self.get(index)
            known[index, size] = self.name(f"{at.text}_lanes" if at.text.isidentifier() else "lanes")
            offset = "" if at.text == "0" else f"{at.operand} + "
            self._line_at(level, f"{known[index, size]} = {offset}tl.arange(0, {size})")
        return known[index, size]

    # -- operations ---------------------------------------------------------------------------------------------------

    def run(self, block: Block) -> None:
        """Writes the operations of a block; what it yields is its parent's business."""
        for op in block.ops:
            if not isinstance(op, (tile.YieldOp, scf.YieldOp)):
                self.run_one(op)

    def run_one(self, op: Operation) -> None:
        """Writes one operation. Raises CompileError where its class is in no table."""
        handler = self.handlers.get(type(op))
        if handler is None:
            raise CompileError(f"Triton has nothing for {op.name}")
        handler(self, op)


def _closes_last(text: str) -> bool:
    """Whether the parenthesis that is opened first is closed last: not so in `f(a) + g(b)`."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == ")" and depth == 0 and position < len(text) - 1:
            return False
    return True


def _is_yielded(value: SSAValue) -> bool:
    return all(isinstance(use.operation, (tile.YieldOp, scf.YieldOp)) for use in value.uses)


def _used_once_beside(value: SSAValue) -> bool:
    uses = list(value.uses)
    owner = value.owner
    return len(uses) == 1 and isinstance(owner, Operation) and uses[0].operation.parent is owner.parent


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a tile. Raises CompileError for extents that are no powers of two, which Triton does not have."""
    assert isinstance(value.type, VectorType)
    shape = tuple(value.type.get_shape())
    if any(extent & (extent - 1) or extent < 1 for extent in shape):
        raise CompileError(
            f"a tile of {'x'.join(map(str, shape))}: tiles in Triton have extents that are powers of two",
            hints=["choose a schedule whose tiles are powers of two"],
        )
    return shape


def element_type(value: SSAValue) -> TritonElement:
    """The element type of a tile, a buffer or a scalar."""
    kind: Attribute = value.type
    return element_of(getattr(kind, "element_type", kind))

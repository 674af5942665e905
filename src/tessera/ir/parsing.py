"""Text to IR and back. Errors point into the text: name:line:column, the line, a caret."""

from __future__ import annotations

import re
from io import StringIO
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import AnyFloat, ComplexType, IndexType, IntegerType, ModuleOp
from xdsl.ir import Operation
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Span

from tessera.errors import IRError, TesseraError
from tessera.ir.dialect import context
from tessera.ir.refusal import RefusalError
from tessera.ir.verification import find_violation

_UNREGISTERED = re.compile(r"Operation (\S+) is not registered")
_UNTYPED = re.compile(r"function type signature expected")
_GENERIC = re.compile(r'((?:%[\w$.-]+(?:\s*,\s*)?)*)(?:\s*=\s*)?("[\w.]+")\s*\(([^()]*)\)')
"""Results, name and operands of an operation in the generic form."""
_UNDEFINED = re.compile(r"values used but not defined: \[(%[^,\]]+)")


class _BitPattern(AttrParser._TensorLiteralElement):
    """`0xff800000` among the elements of a `dense<...>`: as a floating-point element it is the bits, not a number.

    xDSL prints infinities and NaN so, but reads them back as the integer.
    """

    def to_type(self, parser: AttrParser, type: AnyFloat | IntegerType | IndexType | ComplexType) -> object:
        if isinstance(type, AnyFloat):
            bits = cast(int, self.value)
            return next(iter(type.iter_unpack(bits.to_bytes(type.compile_time_size, "little"))))
        return super().to_type(parser, type)


class _LocatingParser(Parser):
    """A parser that remembers where each operation stands, and reads bit patterns in `dense<...>`."""

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        super().__init__(ctx, text, name)
        self.spans: dict[Operation, Span[str]] = {}
        self.ends: dict[Operation, int] = {}
        """Where the token after each operation begins."""

    def parse_operation(self) -> Operation:
        span = self._current_token.span
        operation = super().parse_operation()
        self.spans[operation] = span
        self.ends[operation] = self._current_token.span.start
        return operation

    def _parse_tensor_literal_element(self) -> AttrParser._TensorLiteralElement:
        element = super()._parse_tensor_literal_element()
        if element.span.text[:2].lower() == "0x":
            return _BitPattern(element.is_negative, element.value, element.span)
        return element


class SourceMap:
    """Where the operations of a parsed text stand in it."""

    def __init__(self, parser: _LocatingParser) -> None:
        self._spans, self._ends = parser.spans, parser.ends

    def located(self, refusal: RefusalError) -> TesseraError:
        """The error of a refusal, with the line of the operation or of the attribute that it is about; as it is where
        the operation does not come from this text.
        """
        span, error = self._span(refusal), refusal.error
        if span is None:
            return error
        return type(error)(_message(error.message, span), hints=error.hints, where="")

    def _span(self, refusal: RefusalError) -> Span[str] | None:
        """The name of an attribute where it is written down, which is behind the operation's regions; else the
        operation's name.
        """
        operation = refusal.operation
        whole = self._spans.get(operation)
        if whole is None or not refusal.attribute:
            return whole
        inner = [self._ends[op] for region in operation.regions for block in region.blocks for op in block.ops]
        text, at, found = whole.input.content, max(inner, default=whole.start), None
        for name in refusal.attribute.split("."):
            found = re.compile(rf"\b{re.escape(name)}\b(?=\s*=)").search(text, at, self._ends[operation])
            if found is None:
                return whole
            at = found.end()
        return whole if found is None else Span(found.start(), found.end(), whole.input)


def parse(text: str, name: str = "<text>") -> ModuleOp:
    """The verified module that `text` describes; top-level operations are wrapped in a module when there is none.

    Raises `IRError`, whose message has the line, the column and the line itself with a caret, when the text does not
    parse, an operation breaks its rules, or a value is used where its definition does not dominate.
    """
    return parse_with_source(text, name)[0]


def parse_with_source(text: str, name: str) -> tuple[ModuleOp, SourceMap]:
    """The same, and where its operations stand in the text."""
    parser = _LocatingParser(context(), text, name)
    try:
        module = parser.parse_module()
    except (ParseError, VerifyException, OverflowError) as error:
        raise _located(error, parser) from error
    violation = find_violation(module)
    if violation is not None:
        definition = parser.spans.get(violation.definition) if violation.definition is not None else None
        note = "" if definition is None else f" (line {definition.get_location().line})"
        raise _error(violation.message + note, parser.spans.get(violation.operation))
    return module, SourceMap(parser)


def _located(error: ParseError | VerifyException | OverflowError, parser: _LocatingParser) -> IRError:
    if isinstance(error, ParseError):
        if _UNTYPED.search(error.msg):
            return _without_types(error, parser)
        return _error(error.msg, _named_span(error.msg, parser) or error.span)
    # Types and numbers are checked as they are parsed, before there is an operation to point at.
    return _error(str(error), parser._current_token.span)


def _without_types(error: ParseError, parser: _LocatingParser) -> IRError:
    """The error of an operation that ends before its types, at its name, with the form that has them."""
    before = parser.lexer.input.content[: error.span.start]
    operations = list(_GENERIC.finditer(before))
    if not operations:
        return _error(error.msg, error.span)
    found = operations[-1]
    results, name, operands = found.groups()
    names = [each.strip() for each in operands.split(",") if each.strip()]
    types = [_type_of(each, name, parser) for each in names]
    many = [types[0] if types else _usual_type(name) for each in results.split(",") if each.strip()]
    given = f"({', '.join(many)})" if len(many) != 1 else many[0]
    typed = f"{name}({', '.join(names)}) {{...}} : ({', '.join(types)}) -> {given}"
    span = Span(found.start(2), found.end(2), parser.lexer.input)
    message = _message(f"the types of {name} are missing: those of its operands and results stand behind it", span)
    return IRError(message, hints=[f"for example {typed}"], where="")


def _type_of(value: str, name: str, parser: _LocatingParser) -> str:
    """The type of an operand where it is defined, else one that operations of such a name take."""
    known = parser.ssa_values.get(value.removeprefix("%"))
    return str(known[0].type) if known else _usual_type(name)


def _usual_type(name: str) -> str:
    return "vector<16x16xf32>" if name.startswith('"tessera.tile.') else "tensor<?x?xf32>"


def _named_span(message: str, parser: _LocatingParser) -> Span[str] | None:
    """Where the name stands that a message is about; xDSL notices some names only when it has read past them."""
    text, position = parser.lexer.input.content, parser.pos
    if unregistered := _UNREGISTERED.match(message):
        start = text.rfind(unregistered[1], 0, position)
        return Span(start, start + len(unregistered[1]), parser.lexer.input) if start >= 0 else None
    if undefined := _UNDEFINED.match(message):
        use = re.search(re.escape(undefined[1]) + r"(?![\w$.-])", text)
        return Span(use.start(), use.end(), parser.lexer.input) if use else None
    return None


def _error(message: str, span: Span[str] | Span[bytes] | None) -> IRError:
    # No `where`: the place that matters is in the text, not in the code that asked for it to be parsed.
    return IRError(message) if span is None else IRError(_message(message, span), where="")


def _message(message: str, span: Span[str] | Span[bytes]) -> str:
    """A message with the place that it is about, its line, and a caret below."""
    location = span.get_location()
    content = span.input.content
    text = content if isinstance(content, str) else content.decode()
    lines = text.splitlines()
    # The end of a text that ends in a newline stands on a line of its own.
    line = lines[location.line - 1] if location.line <= len(lines) else ""
    width = max(1, min(span.len, len(line) - location.col + 1))
    caret = " " * (location.col - 1) + "^" * width
    return f"{location}: {message}\n  {line}\n  {caret}"


def print_module(module: ModuleOp) -> str:
    """The module as text that `parse` reads back to the same text; ends in a newline."""
    stream = StringIO()
    Printer(stream=stream).print_op(module)
    return stream.getvalue() + "\n"

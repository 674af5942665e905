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

from tessera.errors import IRError
from tessera.ir.dialect import context
from tessera.ir.verification import find_violation

_UNREGISTERED = re.compile(r"Operation (\S+) is not registered")
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

    def parse_operation(self) -> Operation:
        span = self._current_token.span
        operation = super().parse_operation()
        self.spans[operation] = span
        return operation

    def _parse_tensor_literal_element(self) -> AttrParser._TensorLiteralElement:
        element = super()._parse_tensor_literal_element()
        if element.span.text[:2].lower() == "0x":
            return _BitPattern(element.is_negative, element.value, element.span)
        return element


def parse(text: str, name: str = "<text>") -> ModuleOp:
    """The verified module that `text` describes; top-level operations are wrapped in a module when there is none.

    Raises `IRError`, whose message has the line, the column and the line itself with a caret, when the text does not
    parse, an operation breaks its rules, or a value is used where its definition does not dominate.
    """
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
    return module


def _located(error: ParseError | VerifyException | OverflowError, parser: _LocatingParser) -> IRError:
    if isinstance(error, ParseError):
        return _error(error.msg, _named_span(error.msg, parser) or error.span)
    # Types and numbers are checked as they are parsed, before there is an operation to point at.
    return _error(str(error), parser._current_token.span)


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
    if span is None:
        return IRError(message)
    location = span.get_location()
    content = span.input.content
    text = content if isinstance(content, str) else content.decode()
    lines = text.splitlines()
    # The end of a text that ends in a newline stands on a line of its own.
    line = lines[location.line - 1] if location.line <= len(lines) else ""
    width = max(1, min(span.len, len(line) - location.col + 1))
    caret = " " * (location.col - 1) + "^" * width
    # No `where`: the place that matters is in the text, not in the code that asked for it to be parsed.
    return IRError(f"{location}: {message}\n  {line}\n  {caret}", where="")


def print_module(module: ModuleOp) -> str:
    """The module as text that `parse` reads back to the same text; ends in a newline."""
    stream = StringIO()
    Printer(stream=stream).print_op(module)
    return stream.getvalue() + "\n"

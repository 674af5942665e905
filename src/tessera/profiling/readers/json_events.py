"""The events of a Chrome trace as tables, read in pieces, so that a file of any length takes little memory.

Pieces are parsed by polars, a line an event, since most of a file is a plain row of objects; where that fails (strings
that look like the end of an event, numbers that are text, the end of the row), the standard library's parser takes the
events of that piece one by one, and says where a file is damaged.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import polars
from polars import col

from tessera.errors import ProfileError

PIECE: Final = 4 << 20
"""Bytes that are parsed at once."""

LONGEST_EVENT: Final = 64 << 20
"""Bytes; a longer event, or a longer preamble, is refused: a file that is one endless string must not fill memory."""

_BETWEEN: Final = re.compile(rb"\}\s*,\s*\{")
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_NOTHING: Final = re.compile(r"[ \t\r\n,]*")
_NEWLINES: Final = b"\r\n"
_NEAR: Final = 1 << 16
_UNSURE: Final = 16
"""Characters at the end of a piece where what looks damaged may be just cut."""

_DECODER: Final = json.JSONDecoder()


class EventFile:
    """A Chrome trace: an object with `traceEvents`, or a bare array of events; `.gz` or not.

    `others` holds the keys beside the events: while these are read, those before them, and then all.
    """

    def __init__(self, path: Path, schema: Callable[[EventFile], dict[str, Any]], piece: int = PIECE) -> None:
        """`schema` is asked once, at the first event, which keys of events are wanted, and their types: text, numbers,
        and a struct of `args`. Each one costs time, also where events have it not.
        """
        self.path = path
        self.others: dict[str, Any] = {}
        self.opening = b""
        """The first event and what follows it in the first piece."""
        self._ask = schema
        self.schema: dict[str, Any] = {}
        self._piece = piece
        self._is_object = True
        self._offset = 0  # of the buffer in the file, uncompressed

    def tables(self) -> Iterator[polars.DataFrame]:
        """The events in order, some thousands at a time. Raises ProfileError, with the place, for a file that cannot be
        read, is no Chrome trace, is cut off or is damaged.
        """
        try:
            with self._open() as file:
                yield from self._tables(file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._refused(f"the compressed data is damaged or cut off: {error}") from error
        except OSError as error:
            raise ProfileError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _open(self) -> BinaryIO:
        with self.path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return cast(BinaryIO, gzip.open(self.path)) if packed else self.path.open("rb")

    def _tables(self, file: BinaryIO) -> Iterator[polars.DataFrame]:
        self.opening = buffer = self._preamble(file)
        self.schema = self._ask(self)
        self.opening = b""
        ended = False
        while not ended:
            more = file.read(self._piece)
            ended = not more
            buffer += more
            cut = _last_boundary(buffer)
            table = self._by_lines(buffer[:cut]) if cut else None
            if table is not None:
                yield table
                buffer = self._after(buffer, cut)
                if not ended:
                    continue
            rows, used, closed = self._one_by_one(buffer, ended)
            if rows:
                yield self._table(rows)
            buffer = self._after(buffer, used)
            if closed:
                self._read_others(buffer + file.read(LONGEST_EVENT))
                return
            if len(buffer) > LONGEST_EVENT:
                raise self._refused(f"an event is longer than {LONGEST_EVENT >> 20} MiB, or damaged")
        if self._is_object or buffer.strip(b" \t\r\n,"):  # the end of a bare array may be missing: its format allows it
            raise self._refused("the file is cut off: its events do not end", len(buffer))

    def _preamble(self, file: BinaryIO) -> bytes:
        """Reads up to the first event; what was read beyond."""
        buffer = b""
        while len(buffer) <= LONGEST_EVENT:
            more = file.read(self._piece)
            buffer += more
            if buffer.lstrip()[:1] == b"[":
                self._is_object = False
                return self._after(buffer, buffer.index(b"[") + 1)
            if found := _EVENTS.search(buffer):
                self.others = self._object(buffer[: found.start()].rstrip(b" \t\r\n,") + b"}")
                return self._after(buffer, found.end())
            if not more:
                break
        raise self._refused("it holds no traceEvents", hints=["a Chrome trace is a JSON object with that key"])

    def _read_others(self, rest: bytes) -> None:
        """Takes the keys that follow the events."""
        if self._is_object:
            self.others |= self._object(b"{" + rest.lstrip(b" \t\r\n,"))
        elif rest.strip():
            raise self._refused("something follows the array of events")

    def _object(self, text: bytes) -> dict[str, Any]:
        try:
            found = json.loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise self._refused(f"the keys beside traceEvents are damaged: {error}") from error
        return cast(dict[str, Any], found)  # the text begins with a brace

    def _after(self, buffer: bytes, used: int) -> bytes:
        """What is left of the buffer."""
        self._offset += used
        return buffer[used:]

    def _by_lines(self, events: bytes) -> polars.DataFrame | None:
        """Events as polars parses them; None where it cannot."""
        lines = events.translate(None, _NEWLINES)
        lines = _BETWEEN.sub(b"}\n{", lines[_skipped_bytes(lines) :])
        try:
            table = polars.read_ndjson(lines, schema=self.schema)
        except polars.exceptions.PolarsError:
            return None
        values = table["ph"] == "C"
        if not values.any():
            return table.with_columns(series=polars.lit(None, polars.String))
        each = lines.split(b"\n")
        try:
            series = [json.dumps(json.loads(each[row]).get("args")) for row in values.arg_true()]
        except (ValueError, RecursionError):
            return None
        return table.with_columns(series=polars.lit(None, polars.String)).with_columns(
            series=polars.Series([None] * len(table), dtype=polars.String).scatter(values.arg_true(), series)
        )

    def _one_by_one(self, buffer: bytes, ended: bool) -> tuple[list[dict[str, Any]], int, bool]:
        """The whole events at the beginning of a buffer, the bytes that they take, and whether the array ends there.

        `ended` says that nothing follows the buffer in the file.
        """
        text = buffer.decode("utf-8", "surrogateescape")
        found: list[dict[str, Any]] = []
        place = 0
        while True:
            begin = _skipped(text, place)
            if begin == len(text):
                break
            if text[begin] == "]":
                return found, len(text[: begin + 1].encode("utf-8", "surrogateescape")), True
            if found and "," not in text[place:begin]:
                raise self._refused("a comma is missing after an event", _bytes(text, place))
            try:
                event, place = _DECODER.raw_decode(text, begin)
            except RecursionError as error:
                raise self._refused("an event is nested too deeply", _bytes(text, begin)) from error
            except json.JSONDecodeError as error:
                # Where more follows in the file, an event may just go on there.
                cut_off = error.msg.startswith("Unterminated") or error.pos > len(text) - _UNSURE
                if cut_off and not ended:
                    break
                what = "the file is cut off" if cut_off else "an event is damaged"
                raise self._refused(f"{what}: {error.msg}", _bytes(text, error.pos)) from error
            except ValueError as error:  # of integers with thousands of digits
                raise self._refused(f"an event is damaged: {error}", _bytes(text, begin)) from error
            if not isinstance(event, dict):
                raise self._refused("an event is no object", _bytes(text, begin))
            found.append(event)
        return found, _bytes(text, place), False

    def _table(self, events: list[dict[str, Any]]) -> polars.DataFrame:
        rows = [{name: _value(event.get(name), kind) for name, kind in self.schema.items()} for event in events]
        series = [json.dumps(event.get("args")) if event.get("ph") == "C" else None for event in events]
        return polars.DataFrame(rows, self.schema).with_columns(series=polars.Series(series, dtype=polars.String))

    def _refused(self, why: str, further: int = 0, hints: Iterable[str] = ()) -> ProfileError:
        at = self._offset + further
        return ProfileError(f"{self.path} cannot be read as a Chrome trace: {why}, at byte {at}", hints=hints)


def _last_boundary(buffer: bytes) -> int:
    """Where the last event but one seems to end; 0 where there is no such place."""
    # From a little before the end, and from the beginning only where events are longer.
    for begin in (max(0, len(buffer) - _NEAR), 0):
        ends = [found.start() + 1 for found in _BETWEEN.finditer(buffer, begin)]
        if ends:
            return ends[-1]
    return 0


def _skipped(text: str, place: int) -> int:
    found = _NOTHING.match(text, place)
    return found.end() if found else place


def _skipped_bytes(text: bytes) -> int:
    """Where the first event begins; `lstrip` would copy the whole piece."""
    return max(text.find(b"{", 0, _NEAR), 0)


def _bytes(text: str, place: int) -> int:
    return len(text[:place].encode("utf-8", "surrogateescape"))


def _value(value: Any, kind: Any) -> Any:
    """A value as the column's type has it: numbers may be written as text, and text may be anything."""
    if isinstance(kind, polars.Struct):
        given = value if isinstance(value, dict) else {}
        return {field.name: _value(given.get(field.name), field.dtype) for field in kind.fields}
    if value is None:
        return None
    if kind == polars.String:
        text = value if isinstance(value, str) else json.dumps(value)
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")  # half characters, as of broken names
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def nanoseconds(name: str) -> polars.Expr:
    """A column of microseconds as nanoseconds; null for what no such number can hold."""
    return (col(name) * 1000).round().cast(polars.Int64, strict=False)

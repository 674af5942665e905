"""Calls that stand alone as a statement: nobody looks at what they give, so they print it."""

from __future__ import annotations

import dis
import sys
from functools import cache
from types import CodeType


def print_where_bare(*lines: object, depth: int = 2) -> None:
    """Prints lines if the function that calls this was called as a statement of its own, as in a script; what is
    assigned, handed on, returned, or shown by an interactive session anyway is not printed.

    `depth` is the number of frames from here to the caller of that function.
    """
    frame = sys._getframe(depth)
    if _drops(frame.f_code, frame.f_lasti):
        print(*lines, sep="\n")


@cache
def _drops(code: CodeType, place: int) -> bool:
    """Whether the value of the instruction at a place is dropped by the next one."""
    following = (each for each in dis.get_instructions(code) if each.offset > place)
    return next((each.opname == "POP_TOP" for each in following if each.opname != "CACHE"), False)

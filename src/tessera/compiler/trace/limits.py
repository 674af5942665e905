"""Limits of what is compiled for a kernel: a server that compiles while requests wait is slow, and should know why."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable, Set
from types import FrameType
from typing import Literal, TypeAlias, get_args

from tessera.errors import ArgumentError, CompilationLimitError, is_own_frame

Beyond: TypeAlias = Literal["error", "warn"]
"""What happens beyond a limit."""


class CompilationLimitWarning(UserWarning):
    """More was compiled for a kernel than its limit says."""


class CompilationLimit:
    """How many kernels may be compiled for a function from now on, and what happens beyond that.

    Raises ArgumentError (E_ARGUMENT) for what is no number of kernels.
    """

    def __init__(self, most: int, beyond: Beyond) -> None:
        if type(most) is not int or most < 0:
            raise ArgumentError(f"at most {most!r} compilations", hints=["a number of kernels, from 0 on"])
        if beyond not in get_args(Beyond):
            raise ArgumentError(f"beyond={beyond!r}", hints=['"error" or "warn"'])
        self._most, self._beyond = most, beyond
        self._admitted: set[Hashable] = set()

    def admit(self, function: str, missing: Set[Hashable], reason: str) -> None:
        """Takes note of kernels that a call compiles. Raises CompilationLimitError (E_COMPILATION_LIMIT), or warns,
        where they and those that were admitted before are more than the limit.
        """
        new = missing - self._admitted
        if not new:
            return
        count = len(new) + len(self._admitted)
        if count > self._most:
            message = (
                f"a call of {function} compiles {len(new)} of {count} kernels since the limit, which is {self._most}: "
                f"{reason}"
            )
            if self._beyond == "error":
                raise CompilationLimitError(
                    message,
                    hints=[
                        "warmup(...) compiles for shapes and dtypes before they come",
                        "compilations() says what was compiled, and why",
                    ],
                )
            warnings.warn(message, CompilationLimitWarning, stacklevel=_level_of_user())
        self._admitted |= new


def _level_of_user() -> int:
    """How many frames lie between the caller and the user's line, as `warnings.warn` counts them."""
    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own_frame(frame):
        level, frame = level + 1, frame.f_back
    return level

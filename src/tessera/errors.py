"""What can go wrong: one class per failure, each with a stable code, a message, the place in user code, and hints.

`str(error)` reads::

    E_SHAPE_MISMATCH: matmul: (3, 4) @ (5, 6): inner extents 4 and 5 differ
    at train.py:12
    hint: transpose the second operand

Catch `TesseraError` for all of them, or the builtin that fits (`ValueError`, `TypeError`, `OSError`, ...), from which
each class also derives. The codes are part of the interface: programs may compare them, and they do not change between
versions.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import ClassVar

_NAME = __name__.partition(".")[0]
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class TesseraError(Exception):
    """A failure that Tessera reports. Subclasses set `code`.

    `message` is one sentence without the code. `hints` are remedies, each a sentence of its own. `where` is "file:line"
    of the user's call, None where no frame of the user's is on the stack; it is looked up when it is not given.
    """

    code: ClassVar[str] = "E_TESSERA"

    def __init__(self, message: str, *, hints: Iterable[str] = (), where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hints = tuple(hints)
        self.where = where if where is not None else _user_location(sys._getframe(1))

    def __str__(self) -> str:
        place = [f"at {self.where}"] if self.where else []
        return "\n".join([f"{self.code}: {self.message}", *place, *(f"hint: {hint}" for hint in self.hints)])


class ShapeMismatchError(TesseraError, ValueError):
    """Operands whose shapes do not fit together; the message holds all of them."""

    code = "E_SHAPE_MISMATCH"


class DTypeError(TesseraError, TypeError):
    """A dtype that is unknown, or that the operator does not take."""

    code = "E_DTYPE"


class DeviceError(TesseraError, ValueError):
    """An operand on a device that Tessera cannot reach, or operands on different devices."""

    code = "E_DEVICE"


class DeviceFaultError(TesseraError, RuntimeError):
    """A kernel faulted on its device (an illegal address, for one): the process can use the device no more."""

    code = "E_DEVICE_FAULT"


class DriverError(TesseraError, RuntimeError):
    """A call of a device's driver failed; the message holds the driver's name of the error."""

    code = "E_DRIVER"


class InputMutatedError(TesseraError, RuntimeError):
    """A torch tensor was written to between its use in an expression and the evaluation of that expression."""

    code = "E_INPUT_MUTATED"


class GradDetachedError(TesseraError, RuntimeError):
    """A torch tensor requires grad, and taking it would silently cut the graph of gradients."""

    code = "E_GRAD_DETACHED"


class ValueControlFlowError(TesseraError, TypeError):
    """Python control flow (`if`, `while`, `and`) asked for the value of a lazy tensor or of one being traced."""

    code = "E_VALUE_CONTROL_FLOW"


class InPlaceError(TesseraError, TypeError):
    """An in-place operator or an assignment to elements: tensors are immutable."""

    code = "E_IN_PLACE"


class TorchFunctionError(TesseraError, TypeError):
    """A Tessera tensor was handed to a function of torch."""

    code = "E_TORCH_FUNCTION"


class MissingArgumentError(TesseraError, TypeError):
    """A kernel was called without an operand that it uses in more than a sum."""

    code = "E_MISSING_ARGUMENT"


class NoSubjectError(TesseraError, RuntimeError):
    """A bare `schedule.search_space(...)` or `schedule.autotune(...)` where no kernel is traced or defined."""

    code = "E_NO_SUBJECT"


class FrozenRandomError(TesseraError, RuntimeError):
    """Random numbers that are drawn while a kernel is traced, and would be the same at every call."""

    code = "E_FROZEN_RANDOM"


class DivisionByZeroError(TesseraError, ZeroDivisionError):
    """Integers were divided with rest, and a divisor is 0."""

    code = "E_ZERO_DIVISION"


class ArgumentError(TesseraError, ValueError):
    """An argument, option or environment variable whose value is not allowed."""

    code = "E_ARGUMENT"


class ScheduleError(TesseraError, ValueError):
    """A schedule that cannot be read, or that breaks a legality rule; the hints name the rules."""

    code = "E_SCHEDULE_ILLEGAL"


class PipelineError(TesseraError, ValueError):
    """A pipeline schedule that breaks a rule; the message names the rule, the ranks and their actions."""

    code = "E_PIPELINE"


class TuneSpaceEmptyError(TesseraError, ValueError):
    """No schedule of the requested space is legal; the hints say which rule dropped how many."""

    code = "E_TUNE_SPACE_EMPTY"


class TuneFailedError(TesseraError, RuntimeError):
    """Every candidate of a tuning failed; the hints count the outcomes."""

    code = "E_TUNE_FAILED"


class CacheIOError(TesseraError, OSError):
    """A cache on disk could not be read or written (permissions, full disk, no such folder)."""

    code = "E_CACHE_IO"


class CacheFormatError(TesseraError, ValueError):
    """A cache file is corrupt, or was written by another version of its format."""

    code = "E_CACHE_FORMAT"


class CacheUntrustedError(TesseraError, PermissionError):
    """A file or folder of a cache that somebody else can write, or a link, pipe or device in its place: what lies there
    would run, and is not loaded.
    """

    code = "E_CACHE_UNTRUSTED"


class UnsupportedTargetError(TesseraError, RuntimeError):
    """The device, or the code generator for it, lacks what kernels need; the message names what is missing."""

    code = "E_UNSUPPORTED_TARGET"


class IRError(TesseraError, ValueError):
    """IR that does not parse or verify; the message has line and column where there are any."""

    code = "E_IR"


class MemoryLimitError(TesseraError, MemoryError):
    """A result does not fit into the memory limit, or the operating system refused the memory."""

    code = "E_MEMORY_LIMIT"


class CompileError(TesseraError, RuntimeError):
    """A code generator refused a kernel."""

    code = "E_COMPILE"


class CompilationLimitError(CompileError):
    """A call would compile more for its kernel than the kernel's limit allows; the message says why it is new."""

    code = "E_COMPILATION_LIMIT"


class LibraryError(TesseraError, RuntimeError):
    """A library that an operator calls refused its operands; the message holds what it said."""

    code = "E_LIBRARY"


class IndexRangeError(TesseraError, IndexError):
    """An index out of range, in a tensor of indices; the message has its value and place."""

    code = "E_INDEX"


class BackendFallbackError(TesseraError, NotImplementedError):
    """A graph of `torch.compile` holds what Tessera has no counterpart for, and the options allow none of that."""

    code = "E_BACKEND_FALLBACK"


class ArtefactError(TesseraError, RuntimeError):
    """An artefact cannot be made of a program, or cannot be used here: damaged, made for another machine, or asked for
    shapes that it was not made for.
    """

    code = "E_ARTEFACT"


class StreamError(TesseraError, RuntimeError):
    """Work that was enqueued on a stream failed; the place is that of the call that enqueued it."""

    code = "E_STREAM"


class StreamRaceError(TesseraError, RuntimeError):
    """Work on a stream that orders itself by events touches memory that other work may touch at the same time."""

    code = "E_STREAM_RACE"


class ScheduleIgnoredError(CompileError):
    """A compiler made something else of a schedule than it says, without a word; the message says what was dropped."""

    code = "E_SCHEDULE_IGNORED"


class MeshError(TesseraError, ValueError):
    """A mesh or a layout that cannot be: axes, devices, extents or tensors that do not fit together."""

    code = "E_MESH"


class AbstractMeshError(MeshError):
    """Values are asked for of tensors on a mesh that no job runs on."""

    code = "E_MESH_ABSTRACT"


class NotInMeshError(MeshError):
    """A rank evaluates tensors on a mesh that it has no device of."""

    code = "E_NOT_IN_MESH"


class ImplicitCommunicationError(MeshError):
    """An expression moves data between devices that no line of the program asks for, where that is refused."""

    code = "E_LAYOUT_IMPLICIT"


class ProfileError(TesseraError, RuntimeError):
    """A profile was asked for where there is none, or sessions were used out of order."""

    code = "E_PROFILE"


class AttachError(ProfileError):
    """A process that cannot be profiled from outside: it is gone, somebody else's, or does not answer."""

    code = "E_ATTACH"


class CheckpointError(TesseraError, ValueError):
    """A checkpoint that is not there, cannot be read or written, or holds other tensors than are asked for."""

    code = "E_CHECKPOINT"


class JobError(TesseraError, RuntimeError):
    """A job of several ranks cannot be joined, or cannot go on."""

    code = "E_JOB"


class RankLostError(JobError):
    """Another rank of the job has ended: the message names it and says how, and what this rank was waiting for."""

    code = "E_RANK_LOST"


class CollectiveStalledError(JobError):
    """A collective waits for a rank that does not come: the message names it, the hints say where its program is."""

    code = "E_COLLECTIVE_STALLED"


class CollectiveMismatchError(JobError):
    """Ranks have called different collectives, or with different shapes or dtypes; no data was exchanged."""

    code = "E_COLLECTIVE_MISMATCH"


class CollectiveOrderError(JobError):
    """Two threads have called collectives of one group at the same time, so that their order is left to chance."""

    code = "E_COLLECTIVE_ORDER"


class ForkedError(JobError):
    """A fork of a rank's program has called a collective: the job is its parent's."""

    code = "E_FORKED"


def user_location() -> str | None:
    """ "file:line" of the call in user code that led here, None where no frame of the user's is on the stack."""
    return _user_location(sys._getframe(1))


def _user_location(frame: FrameType | None) -> str | None:
    """The first frame from `frame` outwards that belongs neither to this package, nor to code that it generated, nor to
    torch, nor to the interpreter, its `functools`, whose cached properties call back, and `contextlib`, through which
    exceptions go.

    torch is passed over because some of its Python functions call back into Tessera: the user's line is the one that
    called torch.
    """
    while frame is not None:
        if not is_own_frame(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def is_own_frame(frame: FrameType) -> bool:
    """Whether a frame is this package's, or of what `user_location` passes over beside it."""
    filename = frame.f_code.co_filename
    # A dataclass's own functions have no file, but the module of the class.
    if filename == "<string>" and str(frame.f_globals.get("__name__")).startswith(f"{_NAME}."):
        return True
    return filename.startswith(_passed_over(getattr(sys.modules.get("torch"), "__file__", None)))


@functools.cache
def _passed_over(torch_file: str | None) -> tuple[str, ...]:
    """What the names of files begin with that are not the user's."""
    ours = (_PACKAGE, "<frozen ", "<tessera ", functools.__file__, contextlib.__file__)
    return ours if torch_file is None else (*ours, os.path.dirname(torch_file) + os.sep)

"""Messages between the tuner and its worker process: length-prefixed pickles over pipes.

Both ends are the same program started by the same user; nothing else can write into the pipes.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import BinaryIO

from tessera.tuning.trial import Outcome
from tessera.tuning.workload import Launches, OperandSpec, Workload

HEADER = struct.Struct("<Q")


@dataclass(frozen=True)
class Prepare:
    """Make the operands of a workload. Answer: `Done`."""

    workload: Workload


@dataclass(frozen=True)
class Load:
    """Load a candidate's kernels, run them once and check the outputs. Answer: `Loaded`."""

    candidate: int
    launches: Launches
    temporaries: tuple[OperandSpec, ...]


@dataclass(frozen=True)
class TakeSample:
    """Time a loaded candidate for about `seconds`. Answer: `Sample`."""

    candidate: int
    seconds: float


@dataclass(frozen=True)
class Unload:
    """Forget all loaded candidates. Answer: `Done`."""


@dataclass(frozen=True)
class Done:
    """The request was carried out."""


@dataclass(frozen=True)
class Loaded:
    """Whether a candidate computes the right result; `detail` says what is wrong."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Sample:
    """Seconds per call, the calls made, and whether other work waited for a processor meanwhile."""

    seconds: float
    calls: int
    contended: bool


Request = Prepare | Load | TakeSample | Unload
Reply = Done | Loaded | Sample


def pack(message: Request | Reply) -> bytes:
    """The bytes of a message, its length first."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def read_request(stream: BinaryIO) -> Request | None:
    """The next request, waiting for it; None at the end of the stream."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = stream.read(length)
    if len(body) < length:
        return None
    request = pickle.loads(body)
    assert isinstance(request, Prepare | Load | TakeSample | Unload)
    return request

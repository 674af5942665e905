"""Messages between the tuner and its worker: requests as pickles, replies as JSON.

Requests come from the tuner itself. Replies come from a process in which a faulty candidate ran: they are data, and
what is no reply is refused.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, dataclass
from typing import get_args

from tessera.tuning.measure.conditions import LaunchMode
from tessera.tuning.measure.trial import Outcome
from tessera.tuning.measure.workload import Launches, OperandSpec, Workload


@dataclass(frozen=True)
class Prepare:
    """Make the operands of a workload. Answer: `Done`."""

    workload: Workload


@dataclass(frozen=True)
class Load:
    """Load a candidate's kernels, run them once and check the outputs. Answer: `CandidateCheck`."""

    candidate: int
    launches: Launches
    temporaries: tuple[OperandSpec, ...]


@dataclass(frozen=True)
class TakeSample:
    """Time a loaded candidate for about `seconds`. Answer: `Sample`, or `CandidateCheck` where it is right no more."""

    candidate: int
    seconds: float


@dataclass(frozen=True)
class Verify:
    """Run a loaded candidate and check its outputs once more. Answer: `CandidateCheck`."""

    candidate: int


@dataclass(frozen=True)
class Unload:
    """Forget all loaded candidates. Answer: `Done`."""


@dataclass(frozen=True)
class Done:
    """The request was carried out."""


@dataclass(frozen=True)
class CandidateCheck:
    """Whether a candidate computes the right result; `detail` says what is wrong."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Sample:
    """Seconds per call, the calls made, whether other work waited for a processor, and how it was launched."""

    seconds: float
    calls: int
    contended: bool
    launch: LaunchMode = "call"


Request = Prepare | Load | TakeSample | Verify | Unload
Reply = Done | CandidateCheck | Sample

_REPLIES: dict[str, type[Reply]] = {kind.__name__: kind for kind in (Done, CandidateCheck, Sample)}


def pack_request(request: Request) -> bytes:
    """The bytes of a request."""
    return pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)


def read_request(body: bytes) -> Request:
    """The request that `pack_request` packed."""
    request = pickle.loads(body)
    assert isinstance(request, Request)
    return request


def pack_reply(reply: Reply) -> bytes:
    """The bytes of a reply."""
    return json.dumps([type(reply).__name__, asdict(reply)]).encode()


def read_reply(body: bytes) -> Reply:
    """The reply in `body`. Raises ValueError where there is none."""
    try:
        kind, fields = json.loads(body)
        reply = _REPLIES[kind](**fields)
        if isinstance(reply, Sample):
            reply = Sample(float(reply.seconds), int(reply.calls), bool(reply.contended), reply.launch)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"this is no reply: {body[:80]!r}") from error
    if isinstance(reply, CandidateCheck) and reply.outcome not in get_args(Outcome):
        raise ValueError(f"{reply.outcome!r} is no outcome")
    if isinstance(reply, Sample) and not 0 < reply.seconds < float("inf"):
        raise ValueError(f"{reply.seconds!r} is no time in seconds")
    if isinstance(reply, Sample) and reply.launch not in get_args(LaunchMode):
        raise ValueError(f"{reply.launch!r} is no way to launch")
    return reply

"""The process that compiles candidates for CPUs: ``python -m tessera.compiler.process.worker``, a fork server with a
channel for each process that compiles at the same time.

A lowering is a function of a specification, a schedule and the target, so these are all that is sent.
"""

from __future__ import annotations

import pickle
from typing import Any

from tessera.backend.contract import KernelObject
from tessera.backend.registry import cpu_backend
from tessera.errors import TesseraError
from tessera.scheduling.families.registry import lower
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import Spec
from tessera.target import Target
from tessera.tuning.measure import forkserver
from tessera.tuning.measure.forkserver import Connection

COMPILED, REFUSED = b"+", b"-"
"""The first byte of a reply, before a kernel object, or before the reason why there is none."""


def pack_job(spec: Spec, schedule: Schedule, target: Target) -> bytes:
    """The bytes of a request."""
    # Hashes of texts differ from process to process, and a schedule keeps its own: it is made anew.
    return pickle.dumps((spec, schedule.to_json(), target), protocol=pickle.HIGHEST_PROTOCOL)


def answer(request: bytes) -> bytes:
    """The reply to a request."""
    spec, knobs, target = pickle.loads(request)
    try:
        return COMPILED + _compile(spec, Schedule.from_json(knobs), target).to_bytes()
    except TesseraError as error:
        return REFUSED + error.message.encode()


def _compile(spec: Any, schedule: Schedule, target: Target) -> KernelObject:
    module = lower(spec, schedule, target)
    return cpu_backend().compile(module, target, keep=False)


def serve(connection: Connection) -> None:
    """Answers requests until there are no more."""
    while (request := connection.receive()) is not None:
        connection.send(answer(request))


if __name__ == "__main__":
    cpu_backend().preload()  # once in the server, so that every process has it
    forkserver.run(serve)

"""A contender's process: reads requests, one JSON object a line, and answers each with one line.

Requests: ``prepare`` {contender, builder, case} builds a call and checks its result; ``batch`` {contender} times one
batch of it; ``drop`` forgets all calls and inputs; ``micro`` {contender, name, single} prepares a call of
`bench.micro`, whose batches are one unwarmed call when `single`; ``bound`` {operation, flops, size, dtype} gives the
roofline bound; ``reference`` {theme, name, quick, path} writes a job's float64 result, and ``job`` {contender, theme,
name, quick, path} prepares a call of `bench.jobs` and checks it against that. An answer is the result, or
``{"not_measured": reason}``. An error ends the process: the parent reports its last words as the reason.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from bench.cases import TOLERANCE, Case, Inputs, error, make_inputs
from bench.environments import NotMeasuredError
from bench.timing import LONG_CALL_S, calibrate, time_batch

if TYPE_CHECKING:
    from bench.jobs.posing import PosedJob

Answer = dict[str, Any]


class Worker:
    """The state between requests: prepared calls by contender, and the inputs they share."""

    def __init__(self, threads: int, environment: str) -> None:
        self.environment = environment
        self.threads = threads
        self.calls: dict[str, tuple[Any, int, bool]] = {}
        self.inputs: tuple[Case, Inputs] | None = None
        self.posed: PosedJob | None = None

    def answer(self, request: dict[str, Any]) -> Answer:
        """Carries out one request."""
        handlers: dict[str, Callable[..., Answer]] = {
            "prepare": self.prepare,
            "batch": self.batch,
            "drop": self.drop,
            "micro": self.micro,
            "bound": self.bound,
            "job": self.job,
            "reference": self.reference,
        }
        fields = dict(request)
        return handlers[fields.pop("do")](**fields)

    def prepare(self, contender: str, builder: str, case: dict[str, Any]) -> Answer:
        """Builds the call, compares its result with float64, and finds how many calls make a batch."""
        problem = _case(case)
        if self.inputs is None or self.inputs[0] != problem:
            self.inputs = (problem, make_inputs(problem))
        inputs = self.inputs[1]
        call = _builder(builder)(problem, inputs)
        deviation = error(problem, inputs, _as_torch(call()))
        if deviation > TOLERANCE[problem.dtype]:
            return {"not_measured": f"wrong result: off by {deviation:.1e} of the largest value"}
        return self._keep(contender, call) | {"error": deviation}

    def micro(self, contender: str, name: str, single: bool = False) -> Answer:
        """Prepares the small call `name` of `bench.micro`; batches are one call without warm-up when `single`."""
        from bench.micro import CALLS

        call = CALLS[name]()
        answer = self._keep(contender, call)
        if single:
            self.calls[contender] = (call, 1, False)
        return answer

    def _keep(self, contender: str, call: Any) -> Answer:
        calls = calibrate(call)
        seconds = time_batch(call, calls).seconds
        self.calls[contender] = (call, calls, seconds < LONG_CALL_S)
        return {"calls": calls, "seconds": seconds}

    def batch(self, contender: str) -> Answer:
        """Times one batch of a prepared call."""
        return asdict(time_batch(*self.calls[contender]))

    def drop(self) -> Answer:
        """Forgets everything prepared, so that its memory is free for the next case."""
        self.calls.clear()
        self.inputs = self.posed = None
        gc.collect()
        return {}

    def bound(self, operation: str, flops: int, size: int, dtype: str) -> Answer:
        """The roofline bound of some work; empty where there is none."""
        from bench.ceilings import case_bound

        found = case_bound(operation, flops, size, dtype, self.threads)
        return {} if found is None else asdict(found)

    def _pose(self, theme: str, name: str, quick: bool) -> PosedJob:
        from bench.jobs.posing import pose

        if self.posed is None or self.posed.identity != (theme, name, quick):
            self.calls.clear()
            self.posed = None
            gc.collect()
            self.posed = pose(theme, name, quick)
        return self.posed

    def reference(self, theme: str, name: str, quick: bool, path: str) -> Answer:
        """Writes the float64 result of a job to `path`."""
        self._pose(theme, name, quick).write_reference(path)
        return {}

    def job(self, contender: str, theme: str, name: str, quick: bool, path: str) -> Answer:
        """Builds a job's call, compares its results with the reference at `path`, and finds how many make a batch."""
        call, deviation = self._pose(theme, name, quick).prepare(contender, path)
        return self._keep(contender, call) | {"error": deviation}


def _case(fields: dict[str, Any]) -> Case:
    return Case(fields["operation"], tuple(fields["shape"]), fields["dtype"])


def _builder(name: str) -> Any:
    if name.startswith("tessera"):
        from bench import ours

        return ours.BUILDERS[name]
    from bench import peers

    return peers.BUILDERS[name]


def _as_torch(result: Any) -> Any:
    """A contender's result as a torch tensor, without a copy where possible."""
    import torch

    if isinstance(result, torch.Tensor):
        return result
    if hasattr(result, "torch"):
        return result.torch()
    return torch.from_numpy(result)


class Server(Protocol):
    """Someone who answers requests."""

    def answer(self, request: dict[str, Any]) -> Answer:
        """Carries out one request."""


def serve(worker: Server, requests: TextIO, answers: TextIO) -> None:
    """Answers requests until there are no more."""
    for line in requests:
        try:
            answer = worker.answer(json.loads(line))
        except NotMeasuredError as reason:
            answer = {"not_measured": str(reason)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


@contextmanager
def answering() -> Iterator[tuple[TextIO, TextIO]]:
    """Where requests come from and answers go to; libraries that print to stdout print to stderr instead."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        yield sys.stdin, answers


def main(threads: int, environment: str, tune: bool) -> None:
    """Runs as a process of its own."""
    with answering() as (requests, answers):
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        if tune and environment == "tessera":
            from bench.ours import tuned

            tuned()
        serve(Worker(threads, environment), requests, answers)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "tuned")

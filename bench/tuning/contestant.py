"""One tuner in a process of its own: it tunes a problem once, shows that its result is right, and times batches of it.

Requests, as `bench.worker.serve` reads them: ``tune`` {operation, shape, trials} tunes and gives the seconds it took,
``prepare`` {contender} checks the result and finds how many calls make a batch, ``batch`` {contender} times one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bench.timing import LONG_CALL_S, calibrate, time_batch
from bench.tuning.contest_problems import TOLERANCE, Problem, deviation

if TYPE_CHECKING:
    from bench.tuning.contest_problems import Floats


@dataclass(frozen=True)
class Tuned:
    """What a tuner found: how many candidates it measured, and the call that uses the winner. `result` reads what the
    call wrote; `label` is the winner in the tuner's own words.
    """

    trials: int
    label: str
    call: Callable[[], object]
    result: Callable[[], Floats]


class Tuner(Protocol):
    """A tuner that takes part."""

    def tune(self, problem: Problem, operands: Sequence[Floats], trials: int) -> Tuned:
        """Tunes a problem with at most so many trials, from an empty cache; the call works on `operands`."""


class Contestant:
    """The state between requests."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner = tuner
        self._problem: Problem | None = None
        self._tuned: Tuned | None = None
        self._batch: tuple[int, bool] = 1, True

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request."""
        handlers: dict[str, Callable[..., dict[str, Any]]] = {
            "tune": self.tune,
            "prepare": self.prepare,
            "batch": self.batch,
        }
        fields = dict(request)
        return handlers[fields.pop("do")](**fields)

    def tune(self, operation: str, shape: list[int], trials: int) -> dict[str, Any]:
        """Tunes; the seconds are those of the tuner's call, all that it compiles and starts meanwhile among them."""
        self._problem = Problem(operation, tuple(shape))  # type: ignore[arg-type]
        operands = self._problem.inputs()
        start = time.perf_counter()
        self._tuned = self._tuner.tune(self._problem, operands, trials)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "trials": self._tuned.trials, "label": self._tuned.label}

    def prepare(self, contender: str) -> dict[str, Any]:
        """Compares the winner's result with float64, and finds how many calls make a batch."""
        assert self._problem is not None
        assert self._tuned is not None
        self._tuned.call()
        error = deviation(self._problem, self._tuned.result())
        if error > TOLERANCE:
            return {"not_measured": f"wrong result: off by {error:.1e} of the largest value"}
        calls = calibrate(self._tuned.call)
        seconds = time_batch(self._tuned.call, calls).seconds
        self._batch = calls, seconds < LONG_CALL_S
        return {"seconds": seconds, "error": error}

    def batch(self, contender: str) -> dict[str, Any]:
        """Times one batch of the winner."""
        assert self._tuned is not None
        return asdict(time_batch(self._tuned.call, *self._batch))

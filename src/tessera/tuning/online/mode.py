"""Whether kernels are tuned while a program uses them, and in which share of its time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, TypeAlias

from tessera import settings
from tessera.errors import ArgumentError
from tessera.system import forks
from tessera.tuning.config import Warming
from tessera.tuning.measure.measurement import Measurer, SubprocessMeasurer
from tessera.tuning.online import agreement
from tessera.tuning.online.warmup import MeasurerOf, Prompted, Warmup, niceness_of

DEFAULT_SHARE: Final = 0.1

Share: TypeAlias = float | Literal["first_call"] | None
"""A share of time, "first_call" to tune a kernel at its first call, or None for what TESSERA_TUNE_SHARE says."""

_looking: ContextVar[bool] = ContextVar("looking", default=False)


@contextmanager
def looking() -> Iterator[None]:
    """Schedules that are asked for inside are looked at only: no first call is made, so that none is tuned for it."""
    token = _looking.set(True)
    try:
        yield
    finally:
        _looking.reset(token)


def is_looking() -> bool:
    """Whether schedules are looked at only."""
    return _looking.get()


class TuningMode:
    """What `autotune.enable` sets, and the `Warmup` that it turns on. Methods may be called from several threads.

    Candidates are measured with `measurer`; unless given, in a worker process whose priority follows from the share.
    """

    def __init__(self, measurer: Measurer | None = None) -> None:
        self._measurer = measurer
        self._enabled: bool | None = None
        self._share: Share = None
        self._warmup: Warmup | None = None
        self._lock = forks.lock()

    @property
    def enabled(self) -> bool:
        """Whether kernels are tuned; TESSERA_AUTOTUNE decides until `turn` does."""
        return settings.current().autotune if self._enabled is None else self._enabled

    @property
    def share(self) -> float | None:
        """The share of the program's time that tuning may take; None where first calls wait for it, which those of a
        job of several ranks never do: the others would wait as well, or run another schedule meanwhile.
        """
        if self._share is not None and self._share != "first_call":
            return self._share
        share = None if self._share == "first_call" else settings.current().tune_share
        return DEFAULT_SHARE if share is None and agreement.is_job() else share

    @property
    def warmup(self) -> Warmup | None:
        """What tunes between the calls of the program; None while that is not wanted."""
        share = self.share
        if not self.enabled or share is None:
            return None
        known = self._warmup
        if known is not None and known.share == share:
            return known
        with self._lock:
            if self._warmup is None or self._warmup.share != share:
                self._stop()
                self._warmup = Warmup(share, self._measurer_of(share))
            return self._warmup

    def turn(self, on: bool, share: Share) -> None:
        """Turns tuning on or off; off ends what goes on. Raises ArgumentError for a share that is none."""
        if share is not None and share != "first_call":
            number: object = share  # whatever the caller gave
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number <= 1:
                raise ArgumentError(f"share={share!r}", hints=["a number from above 0 to 1, or 'first_call'"])
        with self._lock:
            self._enabled, self._share = bool(on), share
            if not on or self.share is None:
                self._stop()

    def wait(self, timeout_s: float | None) -> bool:
        """As `Warmup.wait`; there is nothing to wait for where none is on."""
        warmup = self._warmup
        return warmup is None or warmup.wait(timeout_s)

    def progress(self) -> tuple[tuple[Warming, ...], float]:
        """How far each kernel is, and the seconds that the program waited so far."""
        warmup = self._warmup
        return ((), 0.0) if warmup is None else (warmup.reports(), warmup.taken_s)

    def _stop(self) -> None:
        if self._warmup is not None:
            self._warmup.stop()
            self._warmup = None

    def _measurer_of(self, share: float) -> MeasurerOf:
        given = self._measurer
        if given is not None:
            return lambda before: Prompted(given, before)
        limit_s = settings.current().tune_timeout_s
        return lambda before: SubprocessMeasurer(limit_s, niceness=niceness_of(share), before=before)

"""What a session is asked to do, checked before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tessera.errors import ArgumentError
from tessera.profiling.export.contract import Exporter
from tessera.profiling.session.steps import Schedule

ACTIVITIES: Final = ("cpu", "gpu", "memcpy", "collective", "power", "torch")
"""What can be asked for."""

SAMPLE_INTERVAL_MS: Final = 10.0
"""How often power is read where nobody says how often: what sampling costs is below 0.5 % then."""

SUMS_ALONE: Final = 'mode="summary" keeps no kernels, only their sums'
"""Why a trace of that mode has no kernels among its events."""

Mode = Literal["timeline", "summary"]


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """The arguments of `profile.session`. Raises ArgumentError for those that nobody can fulfil."""

    activities: Sequence[str] = ("cpu",)
    record_shapes: bool = False
    with_stack: bool = False
    sample_interval_ms: float | None = None
    exporters: Sequence[Exporter] = ()
    tensorboard_dir: Path | None = None
    mode: Mode = "timeline"
    schedule: Schedule | None = None
    spill: bool | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.activities) - set(ACTIVITIES))
        if unknown:
            raise ArgumentError(
                f"no such activity: {', '.join(unknown)}", hints=[f"activities are {', '.join(ACTIVITIES)}"]
            )
        if self.mode not in ("timeline", "summary"):
            raise ArgumentError(f"mode={self.mode!r}", hints=['"timeline" keeps every event, "summary" sums alone'])
        every: object = self.sample_interval_ms  # whatever the caller gave
        if every is not None and (isinstance(every, bool) or not isinstance(every, int | float) or not every > 0):
            raise ArgumentError(f"sample_interval_ms={every!r}", hints=["milliseconds between samples, for example 10"])
        if self.schedule is not None and not isinstance(self.schedule, Schedule):
            raise ArgumentError(f"schedule={self.schedule!r}", hints=["schedule=profile.schedule(wait=1, active=3)"])
        wrong = [each for each in self.exporters if not hasattr(each, "export")]
        if wrong:
            raise ArgumentError(
                f"exporters=[{wrong[0]!r}]: that is no exporter", hints=['exporters=[profile.chrome("trace.json")]']
            )

    def about(self) -> dict[str, Any]:
        """What a trace says of them, as plain JSON."""
        told: dict[str, Any] = {"activities": list(self.activities), "mode": self.mode}
        if self.mode == "summary":
            told["no_kernels"] = SUMS_ALONE
        if self.schedule is not None:
            told["schedule"] = asdict(self.schedule)
        return told

    @property
    def exports(self) -> bool:
        """Whether anything is written at the end."""
        return bool(self.exporters) or self.tensorboard_dir is not None

    @property
    def left_empty(self) -> Sequence[str]:
        """What would write kernels, and gets none in this mode."""
        if self.mode != "summary":
            return ()
        log = [] if self.tensorboard_dir is None else ["tensorboard_dir"]
        return [type(each).__name__ for each in self.exporters if getattr(each, "needs_kernels", False)] + log

    @property
    def sampling_ms(self) -> float | None:
        """How often counters and sensors are read, None where nobody asked for them."""
        if self.sample_interval_ms is None and "power" in self.activities:
            return SAMPLE_INTERVAL_MS
        return self.sample_interval_ms

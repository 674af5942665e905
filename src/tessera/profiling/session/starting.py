"""Beginning sessions: as `with` blocks, or between two calls."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.export.contract import Exporter
from tessera.profiling.session.options import SUMS_ALONE, Mode, SessionOptions
from tessera.profiling.session.sessions import Session
from tessera.profiling.session.steps import Schedule
from tessera.system import forks

_started: list[Session] = []
_lock = forks.lock()


def session(
    *,
    activities: Sequence[str] = ("cpu",),
    record_shapes: bool = False,
    with_stack: bool = False,
    sample_interval_ms: float | None = None,
    exporters: Sequence[Exporter] = (),
    tensorboard_dir: str | Path | None = None,
    mode: Mode = "timeline",
    schedule: Schedule | None = None,
    spill: bool | None = None,
) -> Session:
    """A profile of everything that runs inside the `with` block, from every thread.

    Results made inside and not evaluated are kept, and evaluated at the block's end, at its marks and steps and at
    region boundaries.

    Args:
        activities: what to record besides Tessera's kernels on CPUs: "gpu", "memcpy", "collective", "power" (sampled),
            "torch" (eager operators of the thread that enters the session). What this machine cannot record is named,
            with the reason, in `Session.capability`.
        record_shapes: whether kernels and operators have their shapes.
        with_stack: whether kernels have the Python stack at which their thread made an operator last. Costly.
        sample_interval_ms: how often counters and sensors are sampled; by default 10 for "power", else never.
        exporters: what writes files at the end, also after an error. Where one cannot, all records are kept in the
            cache folder.
        tensorboard_dir: where the session's log goes, as Parquet.
        mode: "timeline" keeps every event, "summary" only sums over kernels, in bounded memory; exporters that write
            kernels are warned of, and their files say why they have none.
        schedule: which steps are recorded; the program calls `Session.step()` after each.
        spill: whether what is recorded goes to the cache folder too, every second, so that it can be read after the
            process was killed. By default after 10 s.

    Raises ArgumentError for what cannot be fulfilled.
    """
    log = None if tensorboard_dir is None else Path(tensorboard_dir)
    made = Session(
        SessionOptions(
            activities=_several("activities", activities),
            record_shapes=record_shapes,
            with_stack=with_stack,
            sample_interval_ms=sample_interval_ms,
            exporters=_several("exporters", exporters),
            tensorboard_dir=log,
            mode=mode,
            schedule=schedule,
            spill=spill,
        )
    )
    if empty := made.options.left_empty:
        warnings.warn(
            f"{', '.join(empty)}: {SUMS_ALONE}; profile.summary(path) and session.report() show these", stacklevel=2
        )
    return made


def _several(name: str, given: object) -> tuple[Any, ...]:
    """The values of a list. Raises ArgumentError for one value that is none."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentError(f"{name}={given!r} is no list", hints=[f"{name}=[{given!r}]"])
    return tuple(given)


def start(**options: Any) -> Session:
    """Begins a session that `stop()` ends, or the end of the program; takes what `session` takes. Sessions that were
    started last are stopped first.
    """
    begun = session(**options)
    begun.__enter__()
    with _lock:
        _started.append(begun)
    return begun


def stop() -> Session:
    """Ends the session that was started last, and has its exporters write their files. Raises ProfileError where none
    was started.
    """
    with _lock:
        while _started:
            ending = _started.pop()
            if ending.active:
                break
        else:
            raise ProfileError("no session was started", hints=["profile.start() begins one"])
    ending.__exit__(None, None, None)
    return ending

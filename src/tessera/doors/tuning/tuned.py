"""`@op.autotune`: a kernel that is tuned by measuring before its first call with operands of some size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

from tessera.compiler.trace.tracing import P, R, TracedFunction, kernel
from tessera.doors.tuning import spaces
from tessera.tuning.store.process_databases import folder_of

Configs = Iterable[Mapping[str, Any] | str]


@overload
def autotune(function: Callable[P, R], /) -> TracedFunction[P, R]: ...


@overload
def autotune(
    *,
    cache: str | None = None,
    configs: Configs | None = None,
    cost_model: Any = None,
    max_trials: int | None = None,
    budget_s: float | None = None,
) -> Callable[[Callable[P, R]], TracedFunction[P, R]]: ...


def autotune(
    function: Callable[..., Any] | None = None,
    /,
    *,
    cache: str | None = None,
    configs: Configs | None = None,
    cost_model: Any = None,
    max_trials: int | None = None,
    budget_s: float | None = None,
) -> Any:
    """Makes a function a kernel, as `op.kernel` does, that is tuned before its first call with operands of some size;
    later calls, and later programs, use what was found.

    `cache` names the cache that keeps its winners: a folder of that name in the tuning cache, or the path of one, which
    may be copied to other machines of the kind. `configs` are the only schedules to choose from, each a mapping
    from knobs to values (the others are chosen to fit), or the text of a schedule. At most `max_trials` candidates are
    measured (all configs unless given), for about `budget_s` seconds (TESSERA_TUNE_BUDGET unless given), those first
    that `cost_model` (as in `tessera.autotune`) likes best.

    Raises ArgumentError (E_ARGUMENT) for a cache that is none, no configs, a cost model that there is not, and limits
    that are not positive; the first call raises ScheduleError (E_SCHEDULE_ILLEGAL) for a knob that the kernel does not
    have, and TuneSpaceEmptyError (E_TUNE_SPACE_EMPTY) where no config is legal.
    """
    listed = () if configs is None else spaces.schedules_of(configs)
    if cache is not None:
        folder_of(cache)

    def tuned(function: Callable[..., Any]) -> TracedFunction:
        made = function if isinstance(function, TracedFunction) else kernel(function)
        trials = max_trials if max_trials is not None or not listed else len(listed)
        space = spaces.autotune(made, cost_model=cost_model, max_trials=trials, budget_s=budget_s)
        space.cache, space.listed = cache, listed
        return made

    return tuned if function is None else tuned(function)

"""The learned model: the analytical estimates, corrected by what was measured on this kind of machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from tessera.errors import CacheFormatError
from tessera.scheduling.language.columns import Columns
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Seconds
from tessera.system.sources import resource
from tessera.tuning.interfaces import DOUBT, TuningProblem
from tessera.tuning.model.ridge import MeasuredSchedule, Residual, fitted
from tessera.tuning.store.identity import Identity
from tessera.tuning.store.processors import names_of

SHIPPED: Final = Path(__file__).parent / "residuals.json"
"""Corrections of the machines that were measured, by `python -m bench.tuning.fit`."""
FORMAT: Final = "tessera-residuals"
VERSION: Final = 1

Key: TypeAlias = tuple[str, str]
"""Processor, as identities name it, and kernel family."""


class Learned:
    """The analytical model's seconds times a fitted correction, of the problem's processor and family; those seconds
    themselves where there is none (too few trials, another machine).
    """

    name: Final = "learned"
    doubt: Final = DOUBT

    def __init__(self, residuals: Mapping[Key, Residual]) -> None:
        self.residuals = residuals

    @classmethod
    def shipped(cls) -> Learned:
        """The model that comes with the package."""
        return _shipped()

    @classmethod
    def fitted(
        cls, samples: Iterable[MeasuredSchedule], excluding: Callable[[Identity], bool] = lambda identity: False
    ) -> Learned:
        """The model of these measurements, without those of identities that `excluding` names."""
        groups: dict[Key, list[MeasuredSchedule]] = {}
        for sample in samples:
            groups.setdefault((sample.identity.arch, sample.family), []).append(sample)
        found = {key: fitted(group, excluding) for key, group in groups.items()}
        return cls({key: residual for key, residual in found.items() if residual is not None})

    def over(self, other: Learned) -> Learned:
        """This model, and another one for what this one knows nothing of."""
        return Learned({**other.residuals, **self.residuals})

    def residual(self, problem: TuningProblem) -> Residual | None:
        """The correction of a problem's processor and family; None where the analytical model stands alone."""
        keys = ((arch, problem.family) for arch in names_of(problem.identity.arch))
        return next((self.residuals[key] for key in keys if key in self.residuals), None)

    def seconds(self, problem: TuningProblem, schedules: Sequence[Schedule]) -> Seconds:
        """The corrected seconds of the problem's estimates."""
        columns = Columns.of(schedules)
        estimates = problem.estimates(columns)
        residual = self.residual(problem)
        if residual is None:
            return estimates.seconds
        return estimates.seconds * residual.correction(columns, estimates, problem.space.default)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` reads them."""
        models = [
            {"arch": arch, "family": family, **residual.to_json()}
            for (arch, family), residual in sorted(self.residuals.items(), key=lambda item: item[0])
        ]
        return {"format": FORMAT, "version": VERSION, "models": models}

    @classmethod
    def from_json(cls, record: Any, name: str) -> Learned:
        """The model that `to_json` wrote to the file `name`. Raises CacheFormatError for anything else."""
        if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
            raise CacheFormatError(f"{name} holds no residual models of format version {VERSION}")
        try:
            return cls({(each["arch"], each["family"]): Residual.from_json(each) for each in record["models"]})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CacheFormatError(f"{name} is damaged: {type(error).__name__} {error}") from error


@cache
def _shipped() -> Learned:
    found = resource(f"tuning/model/{SHIPPED.name}")
    return Learned.from_json(json.loads(found.read_text()), found.name) if found.is_file() else Learned({})

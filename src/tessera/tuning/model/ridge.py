"""What measurements on one kind of machine showed the analytical model to miss: a ridge regression on log ratios.

The model is linear in a few dozen features of a schedule (`features.py`), and predicts log(measured / estimated). It is
fitted within shapes: what a shape's schedules have in common (a clock that was slow that day) teaches it nothing about
which of them is the fastest. The penalty is the one that predicts shapes best that the fit has not seen (leave one
shape out). Hoerl and Kennard, "Ridge Regression", Technometrics 12, 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tessera.scheduling.language.columns import Columns
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Estimates, Seconds
from tessera.tuning.model.features import Feature, Matrix, features_of, matrix
from tessera.tuning.store.identity import Identity

LEAST_TRIALS: Final = 60
LEAST_SHAPES: Final = 3
"""With fewer trials, or trials of fewer shapes, there is nothing to learn that the next shape could rely on."""
LARGEST: Final = 0.7
"""The largest correction, of a logarithm of time: what is far from all that was measured is not believed further."""
PENALTIES: Final = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Of ridge regression, in units of a sample of every feature's variance."""


@dataclass(frozen=True)
class MeasuredSchedule:
    """One measured schedule: its identity, family, the default of its space, estimated seconds and terms, and measured
    seconds per call.
    """

    identity: Identity
    family: str
    default: Schedule
    schedule: Schedule
    estimated_s: float
    terms: Mapping[str, float]
    measured_s: float


@dataclass(frozen=True)
class Residual:
    """A fitted correction of one family on one kind of machine: log(measured / estimated) of a schedule is
    `intercept + weights . (features - center)`. `trials` and `shapes` say what it was fitted to, `spread` is the root
    mean square of what it leaves of the logarithm on shapes that it had not seen, `before` what it began with.
    """

    features: tuple[Feature, ...]
    center: Seconds
    weights: Seconds
    intercept: float
    trials: int
    shapes: tuple[str, ...]
    spread: float
    before: float

    def correction(self, schedules: Columns, estimates: Estimates, default: Schedule) -> Seconds:
        """By which factor each estimate is multiplied; `default` is that of the schedules' space."""
        rows = matrix(self.features, schedules, estimates, default, self.center) - self.center
        # No product of a matrix library: its threads would spin beside what is measured next.
        logs = self.intercept + np.einsum("ij,j->i", rows, self.weights)
        factors: Seconds = np.exp(np.clip(logs, self.intercept - LARGEST, self.intercept + LARGEST))
        return factors

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, rounded to what the measurements bear; `from_json` is the inverse but for the rounding."""
        columns = zip(self.features, self.center.tolist(), self.weights.tolist(), strict=True)
        return {
            "trials": self.trials,
            "shapes": list(self.shapes),
            "spread": round(self.spread, 4),
            "before": round(self.before, 4),
            "intercept": round(self.intercept, 5),
            "features": [[*feature, round(center, 5), round(weight, 6)] for feature, center, weight in columns],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Residual:
        """What `to_json` wrote. KeyError, TypeError or ValueError for anything else."""
        rows = values["features"]
        return cls(
            tuple((str(kind), str(name), str(other)) for kind, name, other, _, _ in rows),
            np.array([float(row[3]) for row in rows]),
            np.array([float(row[4]) for row in rows]),
            float(values["intercept"]),
            int(values["trials"]),
            tuple(map(str, values["shapes"])),
            float(values["spread"]),
            float(values["before"]),
        )


def fitted(
    samples: Iterable[MeasuredSchedule], excluding: Callable[[Identity], bool] = lambda identity: False
) -> Residual | None:
    """The correction that fits samples of one family and machine, leaving out identities that `excluding` names: a
    figure may not come from a fit that has seen the shape it speaks of. None where too few are left.
    """
    groups: dict[Identity, list[MeasuredSchedule]] = {}
    for sample in samples:
        if not excluding(sample.identity):
            groups.setdefault(sample.identity, []).append(sample)
    kept = {identity: group for identity, group in groups.items() if len(group) > 1}
    if len(kept) < LEAST_SHAPES or sum(map(len, kept.values())) < LEAST_TRIALS:
        return None
    shapes = [_Shape.of(group) for group in kept.values()]
    features = features_of(
        [shape.schedules for shape in shapes], [t for shape in shapes for t in shape.estimates.terms]
    )
    normal = [_Normal.of(shape, features) for shape in shapes]
    return _solved(features, normal, tuple(sorted(str(identity) for identity in kept)))


@dataclass(frozen=True)
class _Shape:
    schedules: Columns
    estimates: Estimates
    default: Schedule
    logs: Seconds
    importance: Seconds

    @classmethod
    def of(cls, group: Sequence[MeasuredSchedule]) -> _Shape:
        measured = np.array([sample.measured_s for sample in group])
        names = dict.fromkeys(term for sample in group for term in sample.terms)
        terms = {name: np.array([sample.terms.get(name, 0.0) for sample in group]) for name in names}
        seconds = np.array([sample.estimated_s for sample in group])
        # What is slow need not be told apart from what is slower.
        importance = measured.min() / measured
        schedules = Columns.of([sample.schedule for sample in group])
        logs = np.log(measured / seconds)
        estimates = Estimates(seconds, terms, {})
        return cls(schedules, estimates, group[0].default, logs, importance / importance.sum())


@dataclass(frozen=True)
class _Normal:
    """The normal equations of one shape, about its own means; each shape counts as much as any other."""

    means: Seconds
    mean: float
    squares: Matrix
    products: Seconds
    energy: float
    count: int

    @classmethod
    def of(cls, shape: _Shape, features: Sequence[Feature]) -> _Normal:
        rows = matrix(features, shape.schedules, shape.estimates, shape.default, np.full(len(features), np.nan))
        rows = _completed(rows)
        means, mean = shape.importance @ rows, float(shape.importance @ shape.logs)
        rows, logs = rows - means, shape.logs - mean
        weighted = rows * shape.importance[:, None]
        energy = float(shape.importance @ logs**2)
        return cls(means, mean, weighted.T @ rows, weighted.T @ logs, energy, len(logs))

    def left(self, weights: Seconds) -> float:
        """The mean square of what weights leave of the logarithms."""
        return float(self.energy - 2 * weights @ self.products + weights @ self.squares @ weights)


def _completed(rows: Matrix) -> Matrix:
    """Numbers that a schedule does not have are those that the others have on average, or 0."""
    missing = np.isnan(rows)
    counts = np.maximum(np.count_nonzero(~missing, axis=0), 1)
    means = np.where(missing, 0.0, rows).sum(axis=0) / counts
    completed: Matrix = np.where(missing, means, rows)
    return completed


def _solved(features: Sequence[Feature], normal: Sequence[_Normal], shapes: tuple[str, ...]) -> Residual:
    squares = np.sum([each.squares for each in normal], axis=0)
    products = np.sum([each.products for each in normal], axis=0)
    scale = np.maximum(np.diag(squares) / len(normal), 1e-9)

    def unseen(penalty: float) -> float:
        errors = [
            each.left(_ridge(squares - each.squares, products - each.products, scale, penalty)) for each in normal
        ]
        return float(np.mean(errors))

    penalty = min(PENALTIES, key=unseen)
    return Residual(
        tuple(features),
        np.mean([each.means for each in normal], axis=0),
        _ridge(squares, products, scale, penalty),
        float(np.mean([each.mean for each in normal])),
        sum(each.count for each in normal),
        shapes,
        float(np.sqrt(max(unseen(penalty), 0.0))),
        float(np.sqrt(np.mean([each.energy for each in normal]))),
    )


def _ridge(squares: Matrix, products: Seconds, scale: Seconds, penalty: float) -> Seconds:
    return np.asarray(np.linalg.solve(squares + np.diag(penalty * scale), products), np.float64)

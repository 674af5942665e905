"""What a cost model errs by, learnt from a few measurements: a Gaussian process over knobs.

log(measured / predicted) of a schedule is taken for the sum of what the model errs by on this kernel at all, of what
each knob's value adds by itself, and of what only schedules alike in all knobs share. The second part is what makes a
handful of trials say something about thousands of schedules: three trials that differ in all else tell what a deeper
block adds. Rasmussen and Williams, "Gaussian Processes for Machine Learning" (MIT Press, 2006), 2.2 and 5.4; Duvenaud
et al., "Additive Gaussian Processes" (NIPS 2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tessera.scheduling.language.schedule import KnobValue, Schedule

Array: TypeAlias = NDArray[np.floating[Any]]

BIAS: Final = 1.0
"""Prior deviation (of a logarithm) of what the model errs by on all schedules of a kernel alike."""
AMPLITUDES: Final = (0.04, 0.08, 0.15, 0.3, 0.6)
"""Deviations of what it errs by on single schedules, from which the likeliest is taken."""
USUAL: Final = 0.15
"""The likeliest of these before anything is measured; `_SPREAD` says by how much, in logarithms."""
LENGTHS: Final = (1.5, 4.0)
"""Octaves of a knob's value over which its effect changes."""
SHAPES: Final = 4.0
"""Octaves of extents, taken together, over which it does."""
FLOOR: Final = 0.01
"""Least deviation of a measured time: two runs of one kernel differ so much."""

_SPREAD: Final = 0.35
_TOGETHER: Final = 0.5
"""Share of the variance that knobs do not have by themselves."""
_UNLIKE: Final = 1.0
"""Distance, in octaves, of two values that have no order."""


class Encoding:
    """Schedules as rows of numbers: the octave of a number, the index of a value without order. Knobs on which
    `sample` agrees are left out.
    """

    def __init__(self, sample: Sequence[Schedule]) -> None:
        self._codes: dict[KnobValue, float] = {}
        first = sample[0]
        columns: list[tuple[str, int | None]] = []
        for knob, value in first.items():
            columns += [(knob, i) for i in range(len(value))] if isinstance(value, tuple) else [(knob, None)]
        varied = [column for column in columns if len({self._number(each, *column) for each in sample}) > 1]
        self._columns = varied or columns[:1]
        self.unordered = np.array([not _is_number(first[knob]) for knob, _ in self._columns])

    def rows(self, schedules: Sequence[Schedule]) -> Array:
        """A row for each schedule."""
        numbers = [[self._number(schedule, *column) for column in self._columns] for schedule in schedules]
        return np.array(numbers, dtype=np.float64).reshape(len(schedules), len(self._columns))

    def _number(self, schedule: Schedule, knob: str, index: int | None) -> float:
        value = schedule[knob]
        if isinstance(value, tuple) and index is not None:
            return math.log2(1 + abs(value[index])) if index < len(value) else -1.0
        if isinstance(value, int) and not isinstance(value, bool):
            return math.log2(1 + abs(value))
        # A number would be the logarithm of one: values without order count downwards.
        return self._codes.setdefault(str(value), -1.0 - len(self._codes))


def _is_number(value: KnobValue) -> bool:
    return isinstance(value, tuple) or (isinstance(value, int) and not isinstance(value, bool))


@dataclass(frozen=True)
class FeatureColumns:
    """What the columns of a row mean: the first `shape` ones are the octaves of extents, the others knobs and the like;
    `unordered` says which of these hold values without order.
    """

    unordered: NDArray[np.bool_]
    shape: int = 0

    def alike(self, here: Array, there: Array, length: float) -> Array:
        """How alike rows are in their knobs, 1 for equal ones, [len(here), len(there)]."""
        single = np.zeros((len(here), len(there)))
        total = np.zeros_like(single)
        for column, unordered in enumerate(self.unordered, self.shape):
            apart = np.abs(here[:, None, column] - there[None, :, column])
            if unordered:
                apart = np.where(apart > 0, _UNLIKE, 0.0)
            total += apart
            single += np.exp(-apart / length)
        count = len(self.unordered)
        return (1 - _TOGETHER) * single / count + _TOGETHER * np.exp(-total / (length * math.sqrt(count)))

    def near(self, here: Array, there: Array) -> Array:
        """How much the residuals of rows of two shapes share, [len(here), len(there)]."""
        apart = np.abs(here[:, None, : self.shape] - there[None, :, : self.shape]).sum(axis=2)
        shared: Array = np.exp(-apart / SHAPES)
        return shared


@dataclass(frozen=True)
class Covariance:
    """Covariance of residuals: `amplitude` is their deviation, `length` that of knobs in octaves."""

    columns: FeatureColumns
    amplitude: float = USUAL
    length: float = LENGTHS[0]

    @property
    def variance(self) -> float:
        """The prior variance of a residual."""
        return BIAS**2 + self.amplitude**2

    def __call__(self, here: Array, there: Array) -> Array:
        """The covariances of rows with rows, [len(here), len(there)]."""
        return self.scaled(self.columns.alike(here, there, self.length), self.columns.near(here, there))

    def scaled(self, alike: Array, near: Array) -> Array:
        """The covariances of what is so much alike in its knobs, and so near in shape."""
        return near * (BIAS**2 + self.amplitude**2 * alike)


@dataclass
class Belief:
    """What is believed of the residuals of `rows`: `mean` and `variance` of each, given the observations and whatever
    is assumed next.
    """

    kernel: Covariance
    rows: Array
    mean: Array
    variance: Array
    whitened: Array

    def assume(self, index: int, noise: float = FLOOR) -> None:
        """As if row `index` were measured and came out as expected: it and what is like it become less uncertain."""
        shared = self.kernel(self.rows, self.rows[index : index + 1])[:, 0]
        shared = shared - _product(self.whitened.T, self.whitened[:, index : index + 1])[:, 0]
        direction = shared / math.sqrt(self.variance[index] + noise**2)
        self.whitened = np.vstack([self.whitened, direction])
        self.variance = np.maximum(self.variance - direction**2, 1e-12)


class GaussianProcess:
    """The posterior, given observed residuals. Amplitude and length are the likeliest of a few."""

    def __init__(
        self,
        columns: FeatureColumns,
        rows: Array,
        residuals: Array,
        noise: Array,
        amplitudes: Sequence[float] = AMPLITUDES,
    ) -> None:
        """Of `rows` [n, columns], their `residuals` [n] and the deviations `noise` [n] of these; n may be 0."""
        self._rows, self._residuals, self._noise = rows, residuals, noise
        self.kernel = Covariance(columns)
        self._root: Array = np.zeros((0, 0))
        self._whitened: Array = np.zeros(0)
        if not len(rows):
            return
        best = -math.inf
        near = columns.near(rows, rows)
        for length in LENGTHS:
            alike = columns.alike(rows, rows, length)
            for amplitude in amplitudes:
                kernel = Covariance(columns, amplitude, length)
                likely, root = self._judged(kernel, kernel.scaled(alike, near))
                if likely > best:
                    best, self.kernel, self._root = likely, kernel, root
        self._whitened = _product(self._root, residuals[:, None])[:, 0]

    def doubted(self) -> GaussianProcess:
        """The same observations under the belief that the cost model may err by much more than it was seen to."""
        return GaussianProcess(self.kernel.columns, self._rows, self._residuals, self._noise, AMPLITUDES[-1:])

    def _judged(self, kernel: Covariance, covariance: Array) -> tuple[float, Array]:
        """The logarithm of how likely a kernel is, given what was observed and what is usual; and the inverse of the
        Cholesky factor of its covariance.
        """
        factor = np.linalg.cholesky(covariance + np.diag(self._noise**2))
        root: Array = np.linalg.inv(factor)
        whitened = _product(root, self._residuals[:, None])
        usual = (math.log(kernel.amplitude / USUAL) / _SPREAD) ** 2
        return float(-0.5 * ((whitened**2).sum() + usual) - np.log(np.diag(factor)).sum()), root

    def belief(self, rows: Array) -> Belief:
        """What is believed of other rows."""
        whitened = _product(self._root, self.kernel(self._rows, rows)) if len(self._rows) else np.zeros((0, len(rows)))
        variance = np.maximum(self.kernel.variance - (whitened**2).sum(axis=0), 1e-12)
        return Belief(self.kernel, rows, _product(whitened.T, self._whitened[:, None])[:, 0], variance, whitened)


def log_seconds(seconds: Sequence[float] | Array) -> Array:
    """Logarithms of predicted times; a model may hold a schedule for infinitely slow."""
    logarithms: Array = np.log(np.clip(seconds, 1e-12, 1e6))
    return logarithms


def _product(a: Array, b: Array) -> Array:
    """The matrix product on this thread alone: the workers of numpy's library would spin on for a while beside what is
    measured next.
    """
    product: Array = np.einsum("ij,jk->ik", a, b)
    return product


def expected_gain(ahead: Array, deviation: Array) -> Array:
    """The expected improvement of normally distributed values that lie `ahead` of the best on average (positive is
    better), with standard `deviation`. Jones et al., J. Global Optimization 13 (1998), eq. 15.
    """
    score = ahead / deviation
    density = np.exp(-0.5 * score**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in score])
    gain: Array = np.maximum(ahead * below + deviation * density, 0.0)
    return gain

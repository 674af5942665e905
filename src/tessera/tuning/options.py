"""How a tuning is done: the arguments of `autotune(...)` that do not say what is tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tessera import settings
from tessera.errors import ArgumentError
from tessera.ops.layout import views
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.conditions import Cache, Conditions, LaunchMode
from tessera.tuning.model.registry import CostModel, cost_model, under
from tessera.tuning.search.search import SearchLimits
from tessera.tuning.search.strategy import StrategyFor, StrategyName, strategy_for
from tessera.tuning.store.entry import Entry

Method: TypeAlias = Literal["model", "on_device"]


@dataclass(frozen=True)
class TuningOptions:
    """`method` measures or asks the model, `limits` end a search, `model` predicts (None: the problem's own model),
    `strategy` proposes what is measured, `conditions` are those of its times (None: those of the problem's case).
    """

    method: Method
    limits: SearchLimits
    model: CostModel | None = None
    strategy: StrategyName | StrategyFor = "guided"
    conditions: Conditions | None = None

    def suits(self, entry: Entry) -> bool:
        """Whether a winner was measured, and under the conditions that were asked for, if any."""
        mode = entry.provenance.mode
        return entry.origin == "measured" and (self.conditions is None or mode == self.conditions.named("on_device"))

    def posed(self, problem: TuningProblem) -> TuningProblem:
        """The problem with predictions by the model that was asked for."""
        return problem if self.model is None else under(problem, self.model)


def options(
    method: str = "on_device",
    max_trials: int | None = None,
    budget_s: float | None = None,
    model: Any = None,
    strategy: StrategyName | StrategyFor = "guided",
    cache: Cache | None = None,
    launch: LaunchMode | None = None,
) -> TuningOptions:
    """The options that arguments of users ask for. Raises ArgumentError for what is none, before anything is done."""
    if method not in get_args(Method):
        raise ArgumentError(f"method {method!r} is neither 'model' nor 'on_device'")
    strategy_for(strategy)
    chosen: Method = "model" if method == "model" else "on_device"
    predicting = None if model is None else cost_model(model)
    conditions = None if cache is None and launch is None else Conditions(cache or "warm", launch or "graph")
    return TuningOptions(chosen, _limits(max_trials, budget_s), predicting, strategy, conditions)


def _limits(max_trials: int | None, budget_s: float | None) -> SearchLimits:
    defaults = SearchLimits()
    trials = defaults.max_trials if max_trials is None else views.integer(max_trials, "max_trials")
    seconds = settings.current().tune_budget_s if budget_s is None else views.number(budget_s, "budget_s")
    if trials < 1:
        raise ArgumentError(
            f"max_trials={trials}: at least one candidate is measured",
            hints=["method='model' asks the cost model alone, and measures nothing"],
        )
    if not seconds > 0:
        raise ArgumentError(f"budget_s={seconds:g}: a positive number of seconds is meant")
    return SearchLimits(max_trials=trials, budget_s=seconds)

"""What a call costs beyond its arithmetic, on 16 elements.

Limits hold for calls in a loop, as timers of the field count them. Rows "after a pause" time one call alone, after the
worker slept and other processes ran: what was evicted from the caches meanwhile is part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.environments import NotMeasuredError
from bench.micro import CALLS, FURTHER
from bench.pool import Pool, RemoteCall
from bench.results import Figure, SuiteResult
from bench.suites import products
from bench.timing import Budget, interleave

ENVIRONMENT = {"tessera": "tessera", "torch": "torch", "compiled": "compile"}
SHOWN = {"tessera": "tessera", "torch": "torch", "compiled": "torch.compile"}
MICRO = 1e6
PAUSED = ", after a pause"
"""What is appended to the name of a call of which a batch is one call, not a loop."""

PAUSED_CALLS = ("tessera node+eval", "torch one", "compiled one", "tessera kernel", "torch five", "compiled five")


@dataclass(frozen=True)
class Quantity:
    """A figure made of calls' medians: the sum of weight times call over `terms`, shown in microseconds."""

    name: str
    contender: str
    terms: Mapping[str, float]
    limit_us: float | None = None


QUANTITIES = (
    Quantity("lazy node", "tessera", {"tessera node": 1.0}, 1.5),
    Quantity("eval() of one operator", "tessera", {"tessera node+eval": 1.0, "tessera node": -1.0}, 3.0),
    Quantity("one operator in all", "tessera", {"tessera node+eval": 1.0}),
    Quantity("one operator in all", "torch", {"torch one": 1.0}),
    Quantity("one operator in all", "compiled", {"compiled one": 1.0}),
    Quantity(
        "eval() of each further operator",
        "tessera",
        {
            "tessera long+eval": 1 / FURTHER,
            "tessera long": -1 / FURTHER,
            "tessera node+eval": -1 / FURTHER,
            "tessera node": 1 / FURTHER,
        },
        0.3,
    ),
    Quantity(
        "each further operator in all",
        "tessera",
        {"tessera long+eval": 1 / FURTHER, "tessera node+eval": -1 / FURTHER},
    ),
    Quantity("each further operator in all", "torch", {"torch long": 1 / FURTHER, "torch one": -1 / FURTHER}),
    Quantity("each further operator in all", "compiled", {"compiled long": 1 / FURTHER, "compiled one": -1 / FURTHER}),
    Quantity("@op.kernel of five operators", "tessera", {"tessera kernel": 1.0}, 5.0),
    Quantity("the same five operators", "torch", {"torch five": 1.0}),
    Quantity("the same five operators", "compiled", {"compiled five": 1.0}),
    *[
        Quantity(f"{what}{PAUSED}", name.partition(" ")[0], {f"{name}{PAUSED}": 1.0})
        for what, names in (("one operator in all", PAUSED_CALLS[:3]), ("five operators", PAUSED_CALLS[3:]))
        for name in names
    ],
)


def figure(quantity: Quantity, seconds: Mapping[str, float], reasons: Mapping[str, str], threads: int) -> Figure:
    """Computes `quantity` from the calls' median seconds, or says which call was not measured and why."""
    missing = [reasons[name] for name in quantity.terms if name not in seconds]
    value = None if missing else MICRO * sum(weight * seconds[name] for name, weight in quantity.terms.items())
    return Figure(
        quantity.name,
        SHOWN[quantity.contender],
        threads,
        "us",
        value,
        quantity.limit_us,
        missing[0] if missing else None,
    )


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    progress(f"overhead, {pool.threads} threads")
    runners: dict[str, RemoteCall] = {}
    reasons: dict[str, str] = {}
    for name in [*CALLS, *[f"{name}{PAUSED}" for name in PAUSED_CALLS]]:
        try:
            process = pool.process(ENVIRONMENT[name.partition(" ")[0]])
            answer = process.ask(
                do="micro", contender=name, name=name.removesuffix(PAUSED), single=name.endswith(PAUSED)
            )
        except NotMeasuredError as reason:
            reasons[name] = str(reason)
            continue
        runners[name] = RemoteCall(process, name, answer["seconds"], None)
    samples = interleave(runners, products.QUICK if quick else Budget(seconds=8.0, kept=40, limit_s=25.0))
    pool.drop()
    seconds = {name: sample.median for name, sample in samples.items()}
    figures = [figure(quantity, seconds, reasons, pool.threads) for quantity in QUANTITIES]
    return SuiteResult("overhead", pool.threads, figures=figures)

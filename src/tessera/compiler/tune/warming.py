"""Plans of kernels that are being tuned between calls: they run as they are, and are bound once more when one is done.

before: structure.plan = WarmingPlan(BoundPlan), whose calls give the tuner its time
after:  structure.plan = BoundPlan, of the winners, which costs what any plan costs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

from tessera.lazy.structures.structure import Plan
from tessera.runtime.plans.gpu_plan import DevicePlan
from tessera.tuning.online.ticket import Ticket
from tessera.tuning.online.warmup import Warmup

EVERY_S: Final = 1e-4
"""The tuner hears of short calls so often: telling it takes 2 us, more than a small kernel."""


class WarmingPlan:
    """A plan that tells the tuner when a call has ended. `plan` is what runs, `settled` is called once when one of the
    tickets of its kernels is settled. Thread-safe as the plan is.
    """

    __slots__ = ("_calls", "_due_s", "_is_exact", "_settled", "_tickets", "_warmup", "plan", "threads")

    def __init__(self, plan: Plan, tickets: Sequence[Ticket], warmup: Warmup) -> None:
        self.plan, self.threads = plan, plan.threads
        self._tickets, self._warmup = tuple(tickets), warmup
        self._settled: Callable[[WarmingPlan], None] | None = None
        self._calls, self._due_s = 0, 0.0
        self._is_exact = any(ticket.job is not None for ticket in tickets)  # ranks change schedules at the same call

    def when_settled(self, settled: Callable[[WarmingPlan], None]) -> None:
        """Has `settled` called when a kernel has been tuned, or cannot be."""
        self._settled = settled

    def run(self, leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        """As the plan's, and then what tuning there is time for."""
        results = self.plan.run(leaves)
        self._after()
        return results

    def run_into(self, leaves: tuple[Any, ...], targets: tuple[Any, ...]) -> bool:
        """As the plan's, and then what tuning there is time for."""
        done = self.plan.run_into(leaves, targets)
        if done:
            self._after()
        return done

    def reserve(self, leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        """As the plan's."""
        return self.plan.reserve(leaves)

    def fill(self, leaves: tuple[Any, ...], targets: tuple[Any, ...]) -> None:
        """As the plan's. The tuner goes on beside the program: what waits for a stream is not made to wait longer."""
        self.plan.fill(leaves, targets)
        self._after(waits=False)

    def _after(self, waits: bool = True) -> None:
        self._calls += 1
        now = perf_counter()
        if now < self._due_s and not self._is_exact:
            return
        self._due_s = now + EVERY_S
        calls, self._calls = self._calls, 0
        if self._warmup.between_calls(self._tickets, calls, waits, self._drain):
            settled, self._settled = self._settled, None
            if settled is not None:
                settled(self)
                self._warmup.warn()

    def _drain(self) -> None:
        """Returns when the device has nothing more to do, so that a sample there is not disturbed."""
        if isinstance(self.plan, DevicePlan):
            driver = self.plan.driver
            driver.synchronize(driver.stream())


def running(plan: Plan) -> Plan:
    """The plan that runs: of one that is being tuned, the one beneath."""
    return plan.plan if isinstance(plan, WarmingPlan) else plan

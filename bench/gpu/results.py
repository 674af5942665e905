"""What a run found: measured, or not and why; ratios, goals, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.gpu.cases import Case
from bench.gpu.timing import Cache, geomean
from bench.table import duration

OURS = "tessera"


@dataclass(frozen=True)
class Found:
    """One case with one state of the cache: seconds by contender (`OURS` and peers), and why others have none."""

    suite: str
    label: str
    cache: Cache
    work: float
    unit: str
    schedule: str
    seconds: Mapping[str, float]
    missing: Mapping[str, str]
    error: float | None
    goals: Mapping[str, float] = field(default_factory=dict)

    def ratio(self, peer: str) -> float | None:
        """A peer's time over ours; None where one of them was not measured."""
        ours, theirs = self.seconds.get(OURS), self.seconds.get(peer)
        return None if ours is None or theirs is None else theirs / ours

    def rate(self, contender: str) -> float | None:
        """What a contender computed or moved a second, in `unit`."""
        seconds = self.seconds.get(contender)
        scale = 1e12 if self.unit == "TFLOP/s" else 1e9
        return None if seconds is None else self.work / seconds / scale


def found(
    case: Case,
    cache: Cache,
    schedule: str,
    seconds: Mapping[str, float],
    missing: Mapping[str, str],
    error: float | None,
) -> Found:
    """What was found of a case."""
    return Found(case.suite, case.label, cache, case.work, case.unit, schedule, seconds, missing, error, case.goals)


@dataclass(frozen=True)
class Goal:
    """A goal of a whole suite, and what was reached: None where it was not measured."""

    text: str
    least: float
    reached: float | None

    @property
    def met(self) -> str:
        """Whether it was reached, for tables."""
        return "not measured" if self.reached is None else "yes" if self.reached >= self.least else "NO"


def goals(results: Sequence[Found]) -> list[Goal]:
    """The goals over several cases, and those that single cases name, cold and warm apart."""
    listed: list[Goal] = []
    for cache in ("cold", "warm"):
        own = [result for result in results if result.cache == cache]
        squares = [result for result in own if result.suite == "matmul"]
        listed.append(Goal(f"bf16 matmul, geomean of cuBLAS's time / ours, {cache} L2", 0.95, _mean(squares, "cuBLAS")))
        large = [result.rate(OURS) for result in squares if "8192 cubed" in result.label]
        listed.append(Goal(f"bf16 8192 cubed, TFLOP/s, {cache} L2", 710.0, large[0] if large else None))
        for result in own:
            for peer, least in result.goals.items():
                listed.append(Goal(f"{result.label}, {peer}, {cache} L2", least, result.ratio(peer)))
    return listed


def _mean(results: Iterable[Found], peer: str) -> float | None:
    ratios = [ratio for result in results if (ratio := result.ratio(peer)) is not None]
    return geomean(ratios) if ratios else None


COLUMNS = ("case", "L2", "contender", "time", "rate", "its time / ours", "schedule or reason", "error")


def rows(result: Found) -> list[tuple[str, ...]]:
    """The lines of a table for one case."""
    lines: list[tuple[str, ...]] = []
    for contender in result.seconds:
        ratio, rate = result.ratio(contender), result.rate(contender)
        ours = contender == OURS
        lines.append(
            (
                result.label if ours or OURS not in result.seconds else "",
                result.cache,
                contender,
                duration(result.seconds[contender]),
                "" if rate is None else f"{rate:.0f} {result.unit}",
                "" if ratio is None else f"{ratio:.2f}",
                result.schedule if ours else "",
                f"{result.error:.0e}" if ours and result.error is not None else "",
            )
        )
    for contender, reason in result.missing.items():
        lines.append((result.label, result.cache, contender, "not measured", "", "", reason, ""))
    return lines


def markdown(results: Sequence[Found], heading: str) -> str:
    """All results and goals as Markdown."""
    lines = [f"# {heading}", "", _line(COLUMNS), _line(("---",) * len(COLUMNS))]
    lines += [_line(row) for result in results for row in rows(result)]
    lines += ["", "## Goals", "", _line(("goal", "at least", "reached", "met")), _line(("---",) * 4)]
    for goal in goals(results):
        reached = "" if goal.reached is None else f"{goal.reached:.2f}"
        lines.append(_line((goal.text, f"{goal.least:g}", reached, goal.met)))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"

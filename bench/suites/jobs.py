"""The suites of `bench.jobs`: attention, convolution, whole blocks and models, products of few rows."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from bench import contest
from bench.environments import NotMeasuredError
from bench.jobs import THEMES, contenders, first_call, load, memory
from bench.jobs.contenders import JobContender
from bench.jobs.job import PEERS, Group, Job
from bench.pool import Pool, RemoteCall, prepare_job
from bench.results import CaseResult, Figure, Measurement, SuiteResult
from bench.suites import products
from bench.timing import Budget

MEGA = 1e-6
BUDGET = Budget(seconds=1.5, kept=9, limit_s=10.0)
FIRST_CALL_LIMITS = {"cold": 0.35, "warm": 0.1}
"""Shares of `torch.compile`'s first call with empty caches that ours may take, with empty caches and with full ones."""
TWO_CONTENDERS = (contenders.OURS, contenders.COMPILED)


def run_job(pool: Pool, theme: str, job: Job, quick: bool, budget: Budget) -> CaseResult:
    """Holds the contest of one job: the reference first, then everyone checked against it and timed in turn."""
    everyone = contenders.contenders(job)
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        problem = {"theme": theme, "name": job.name, "quick": quick, "path": str(Path(folder) / "reference.pt")}

        def ready(contender: JobContender) -> RemoteCall:
            return prepare_job(pool, contender.environment, contender.name, problem)

        try:
            pool.process("torch").ask(do="reference", **problem)
        except NotMeasuredError as failure:
            measurements = tuple(Measurement(each.name, each.role, "fresh", reason=str(failure)) for each in everyone)
        else:
            measurements = contest.measure(everyone, ready, budget)
    pool.drop()
    known = job.flops or job.bytes
    least = contest.bound(pool, theme, job.flops, job.bytes, job.dtype) if known else None
    return CaseResult(
        job.name,
        pool.threads,
        job.flops,
        job.bytes,
        least.seconds if least else None,
        least.binds if least else None,
        measurements,
        job.goals,
    )


def summary(job: Job, case: CaseResult) -> str:
    """One line of what came of `job`: how much of our time the best peer takes."""
    best = case.best(PEERS, None)
    ratio = None if best is None else case.ratio(best)
    return f"{job.name}: " + ("not measured" if best is None or ratio is None else f"{ratio:.2f} ({best.contender})")


def group_figures(jobs: list[Job], cases: list[CaseResult], threads: int) -> list[Figure]:
    """The geometric mean of best peer's time / ours of every group, over the jobs that were measured."""
    ratios: dict[Group, list[float | None]] = {}
    for job, case in zip(jobs, cases, strict=True):
        if job.group is not None:
            best = case.best(PEERS, None)
            ratios.setdefault(job.group, []).append(None if best is None else case.ratio(best))
    return [_mean(group, found, threads) for group, found in ratios.items()]


def _mean(group: Group, ratios: list[float | None], threads: int) -> Figure:
    known = [ratio for ratio in ratios if ratio is not None]
    missing = len(ratios) - len(known)
    reason = f"{missing} of {len(ratios)} jobs have no ratio" if missing else None
    value = None if missing else math.exp(math.fsum(map(math.log, known)) / len(known))
    name = f"{group.name}: best peer's time / ours, geometric mean of {len(ratios)}"
    return Figure(name, "tessera", threads, "", value, reason=reason, least=group.ratio)


def memory_figures(theme: str, job: Job, quick: bool, threads: int) -> list[Figure]:
    """Peak memory of a process that serves `job`, ours with that of `torch.compile` as its limit, and the peak's share
    that comes and goes with the calls."""
    figures: list[Figure] = []
    limits: dict[str, float] = {}
    names = {"call": "memory of a call", "serving": "peak memory while serving"}
    for contender in (one for one in reversed(contenders.contenders(job)) if one.name in TWO_CONTENDERS):
        found: dict[str, float] = {}
        reason = None
        try:
            found = memory.measure(theme, job.name, contender.name, contender.environment, quick, threads)
        except NotMeasuredError as failure:
            reason = str(failure)
        for key, name in names.items():
            value = MEGA * found[key] if key in found else None
            limit = limits.get(key) if contender.role == "ours" else None
            figures.append(Figure(f"{job.name}: {name}", contender.name, threads, "MB", value, limit, reason))
            if value is not None:
                limits[key] = value
    return figures


def first_call_figures(theme: str, job: Job, quick: bool, threads: int) -> list[Figure]:
    """Seconds of the first call, with empty caches and with those that it filled."""
    figures: list[Figure] = []
    theirs: float | None = None
    for contender in (one for one in reversed(contenders.contenders(job)) if one.name in TWO_CONTENDERS):
        found: dict[str, float] = {}
        reason = None
        try:
            found = first_call.measure(theme, job.name, contender.name, contender.environment, quick, threads)
        except NotMeasuredError as failure:
            reason = str(failure)
        is_ours = contender.role == "ours"
        for caches, share in FIRST_CALL_LIMITS.items():
            limit = share * theirs if is_ours and theirs is not None else None
            name = f"{job.name}: first call, {caches} caches"
            figures.append(Figure(name, contender.name, threads, "s", found.get(caches), limit, reason))
        theirs = None if is_ours else found.get("cold")
    return figures


def copy_figure(job: Job, threads: int, repeats: int) -> Figure:
    """A copy's share of the time of a call, where both move the same bytes: measured in this process, in turn."""
    inputs, module = job.inputs(), job.module()
    call = job.ours(module, inputs)
    source = torch.ones(job.bytes // 8)
    target = torch.empty_like(source)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    times: dict[str, list[float]] = {"copy": [], "ours": []}
    try:
        for _ in range(repeats):
            for name, timed in (("copy", lambda: target.copy_(source)), ("ours", call)):
                start = time.perf_counter()
                timed()
                times[name].append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    value = 100 * statistics.median(times["copy"]) / statistics.median(times["ours"])
    return Figure(f"{job.name}: share of the copy bound", "tessera", threads, "%", value)


def run(name: str, pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite `name` with the pool's thread count."""
    result = SuiteResult(name, pool.threads)
    try:
        for theme in THEMES[name]:
            _run_theme(name, theme, pool, progress, quick, result)
    except KeyboardInterrupt:
        result.interrupted = True  # what was measured is kept; a group of jobs without all of them has no mean
    return result


def _run_theme(
    suite: str, theme: str, pool: Pool, progress: Callable[[str], None], quick: bool, result: SuiteResult
) -> None:
    """Adds the cases and figures of `theme` to `result`, each as soon as it is there."""
    budget = products.QUICK if quick else BUDGET
    jobs = load(theme, quick)
    cases = []
    for index, job in enumerate(jobs):
        progress(f"{suite}, {pool.threads} threads, {theme} {index + 1} of {len(jobs)}: {job.name}")
        case = run_job(pool, theme, job, quick, budget)
        cases.append(case)
        result.cases.append(case)
        progress(summary(job, case))
        if job.memory:
            result.figures.extend(memory_figures(theme, job, quick, pool.threads))
        if job.first_call:
            result.figures.extend(first_call_figures(theme, job, quick, pool.threads))
        if job.copy_bound:
            result.figures.append(copy_figure(job, pool.threads, 3 if quick else 25))
    result.figures.extend(group_figures(jobs, cases, pool.threads))


SUITES = {name: partial(run, name) for name in THEMES}

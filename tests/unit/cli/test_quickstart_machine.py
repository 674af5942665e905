"""Ceilings in doubt: measured again, the greater figures kept, and what stays in doubt marked wherever it is shown."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tessera import analyze, settings
from tessera.analyze import RooflinePoint
from tessera.cli import quickstart
from tessera.cli.quickstart import Result
from tessera.cli.quickstart_kernels import kernels
from tessera.cli.quickstart_machine import Machine, describe, greater, look, look_again
from tessera.errors import ArgumentError, CacheIOError
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling, Target, detect
from tessera.tuning.config import Config
from tests.unit.tuning.support import MATMUL

BUSY = "other programs kept the CPU busy"


def ceilings(gflop_per_s: float, gbps: float, workers: int = 1) -> Ceilings:
    compute = (ComputeCeiling("fp32", workers, 1e9 * gflop_per_s),)
    memory = (MemoryCeiling("L2", workers, 2e9 * gbps), MemoryCeiling("DRAM", workers, 1e9 * gbps))
    return Ceilings("znver4", "a CPU", "measured", compute, memory, "2026-11-21T10:00:00+00:00")


def cpu(known: Ceilings) -> Target:
    return detect().with_ceilings(known)


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[tuple[Ceilings, str]]], None]:
    """Has `analyze.machine` give these ceilings one after the other, each with a warning unless that is empty."""

    def provide(answers: Sequence[tuple[Ceilings, str]]) -> None:
        waiting = iter(answers)

        def machine() -> Target:
            known, said = next(waiting)
            if said:
                warnings.warn(said, stacklevel=2)
            return cpu(known)

        monkeypatch.setattr(analyze, "machine", machine)

    return provide


def text_of(show: Callable[[Console], None]) -> str:
    console = Console(file=io.StringIO(), width=120)
    show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_figure_is_the_greater_one() -> None:
    both = greater(ceilings(100, 40), ceilings(200, 30))
    assert both.flop_per_s("fp32", 1) == 200e9
    assert both.byte_per_s("DRAM", 1) == 40e9
    assert greater(ceilings(100, 40), ceilings(200, 50, workers=2)).flop_per_s("fp32", 1) == 100e9


def test_ceilings_of_a_busy_machine_are_in_doubt_and_unkept_ones_are_not() -> None:
    target = cpu(ceilings(1, 1))
    assert Machine(target, (BUSY,)).in_doubt
    assert not Machine(target, (str(CacheIOError("they could not be kept")),)).in_doubt
    assert not Machine(target).in_doubt


def test_ceilings_in_doubt_are_measured_again(
    measurements: Callable[[Sequence[tuple[Ceilings, str]]], None],
) -> None:
    console = Console(file=io.StringIO())
    measurements([(ceilings(100, 40), BUSY), (ceilings(90, 50), BUSY), (ceilings(95, 45), "")])
    first = look(console)
    second = look_again(first, console)
    assert second.in_doubt
    assert second.target.ceilings is not None
    assert second.target.ceilings.flop_per_s("fp32", 1) == 100e9
    assert second.target.ceilings.byte_per_s("DRAM", 1) == 50e9
    third = look_again(second, console)
    assert not third.in_doubt
    assert third.target.ceilings == ceilings(95, 45)


def test_the_threads_of_kernels_decide_which_ceilings_are_named() -> None:
    machine = Machine(cpu(ceilings(100, 40)), (BUSY,))
    with settings.override(threads=1):
        shown = text_of(lambda console: describe(machine, console))
    assert "1 thread\n" in shown
    assert "fp32 100 GFLOP/s" in shown
    assert "DRAM 40 GB/s" in shown
    assert f"note: {BUSY}" in shown
    with settings.override(threads=3):
        assert "not measured for 3 threads, only for 1" in text_of(lambda console: describe(machine, console))


@pytest.fixture
def result() -> Result:
    kernel = replace(kernels()[0], operands=(torch.zeros(1),))
    config = Config(Schedule(tile=(1, 1, 1)), MATMUL, "model")
    return Result(kernel, config, 2e-3, True, 1e-7, RooflinePoint("matmul", 1e8, 1e5, 1e-3, "fp32", 1))


def test_shares_in_doubt_are_marked_in_the_table_and_in_the_picture(result: Result, tmp_path: Path) -> None:
    doubtful, sure = Machine(cpu(ceilings(200, 40)), (BUSY,)), Machine(cpu(ceilings(200, 40)))
    for machine in (doubtful, sure):
        model = quickstart.roofline([result], machine)
        shown = text_of(lambda console, m=machine, o=model: console.print(quickstart.table([result], o, m.in_doubt)))  # type: ignore[misc]
        assert ("50 +" in shown) == machine.in_doubt
        assert ("while the ceilings were measured" in shown) == machine.in_doubt
        assert ("busy" in model.target.name) == machine.in_doubt


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="--folder"):
        quickstart.check_folder(tmp_path / "file" / "results")
    quickstart.check_folder(tmp_path / "new" / "results")
    assert (tmp_path / "new" / "results").is_dir()

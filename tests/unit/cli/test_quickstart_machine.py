"""Ceilings in doubt: measured again, the greater figures kept, and what stays in doubt marked wherever it is shown."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tessera import analyze, settings
from tessera.analyze import RooflinePoint
from tessera.cli.quickstart import running
from tessera.cli.quickstart.kernels import kernels
from tessera.cli.quickstart.machine import MeasuredMachine, describe, look
from tessera.cli.quickstart.running import QuickstartRow
from tessera.errors import ArgumentError
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling, Target, detect
from tessera.tuning.config import Config
from tests.unit.tuning.support import MATMUL

BUSY = "other programs kept the CPU busy"


def ceilings(gflop_per_s: float, gbps: float, workers: int = 1, in_doubt: tuple[str, ...] = ()) -> Ceilings:
    compute = (ComputeCeiling("fp32", workers, 1e9 * gflop_per_s),)
    memory = (MemoryCeiling("L2", workers, 2e9 * gbps), MemoryCeiling("DRAM", workers, 1e9 * gbps))
    return Ceilings("znver4", "a CPU", "measured", compute, memory, "2026-11-21T10:00:00+00:00", in_doubt)


def cpu(known: Ceilings) -> Target:
    return detect().with_ceilings(known)


def text_of(show: Callable[[Console], None]) -> str:
    console = Console(file=io.StringIO(), width=120)
    show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_figure_is_the_greater_one_and_in_doubt_what_is_so_twice() -> None:
    one, other = ceilings(100, 40, in_doubt=("fp32", "L2")), ceilings(200, 30, in_doubt=("L2",))
    both = one.raised_to(other)
    assert both.flop_per_s("fp32", 1) == 200e9
    assert both.byte_per_s("DRAM", 1) == 40e9
    assert both.in_doubt == ("L2",)
    assert ceilings(100, 40).raised_to(ceilings(200, 50, workers=2)).flop_per_s("fp32", 1) == 100e9


def test_what_is_said_while_ceilings_are_measured_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def machine(*, again: bool) -> Target:
        asked.append(again)
        warnings.warn(BUSY, stacklevel=2)
        return cpu(ceilings(100, 40, in_doubt=("fp32",)))

    monkeypatch.setattr(analyze, "machine", machine)
    console = Console(file=io.StringIO())
    assert look(console, again=True).notes == (BUSY,)
    assert look(console).in_doubt
    assert asked == [True, False]


def test_the_threads_of_kernels_decide_which_ceilings_are_named() -> None:
    machine = MeasuredMachine(cpu(ceilings(100, 40)), (BUSY,))
    with settings.override(threads=1):
        shown = text_of(lambda console: describe(machine, console))
    assert "1 thread\n" in shown
    assert "fp32 100 GFLOP/s" in shown
    assert "DRAM 40 GB/s" in shown
    assert f"note: {BUSY}" in shown
    with settings.override(threads=3):
        assert "not measured for 3 threads, only for 1" in text_of(lambda console: describe(machine, console))


@pytest.fixture
def result() -> QuickstartRow:
    kernel = replace(kernels()[0], operands=(torch.zeros(1),))
    config = Config(Schedule(tile=(1, 1, 1)), MATMUL, "model")
    return QuickstartRow(kernel, config, 2e-3, True, 1e-7, RooflinePoint("matmul", 1e8, 1e5, 1e-3, "fp32", 1))


def test_shares_in_doubt_are_marked_in_the_table_and_in_the_picture(result: QuickstartRow, tmp_path: Path) -> None:
    doubtful, sure = (
        MeasuredMachine(cpu(ceilings(200, 40, in_doubt=("fp32",)))),
        MeasuredMachine(cpu(ceilings(200, 40))),
    )
    for machine in (doubtful, sure):
        model = running.roofline([result], machine)
        shown = text_of(lambda console, m=machine, o=model: console.print(running.table([result], o, m.in_doubt)))  # type: ignore[misc]
        assert ("50 +" in shown) == machine.in_doubt
        assert ("while the ceilings were measured" in shown) == machine.in_doubt
        assert ("busy" in model.target.name) == machine.in_doubt


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="--folder"):
        running.check_folder(tmp_path / "file" / "results")
    running.check_folder(tmp_path / "new" / "results")
    assert (tmp_path / "new" / "results").is_dir()


def test_a_kernel_above_the_measured_ceiling_is_called_so(result: QuickstartRow) -> None:
    model = running.roofline([result], MeasuredMachine(cpu(ceilings(50, 400))))
    shown = text_of(lambda console: console.print(running.table([result], model)))
    assert "above the measured ceiling: 1 of 1" in " ".join(shown.split())

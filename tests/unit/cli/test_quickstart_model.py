"""The quickstart's PyTorch model: every way is checked and timed, and what cannot run says why."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from torch._inductor import cpp_builder, exc

from tessera.cli.quickstart import model as quickstart_model
from tessera.cli.quickstart import timing as quickstart_timing
from tessera.cli.quickstart.model import ModelRow, measure_model, model_table, transformer


def shown(rows: list[ModelRow]) -> str:
    text = io.StringIO()
    Console(file=text, width=110).print(model_table(rows, "a model"))
    return text.getvalue()


def test_without_a_compiler_inductor_is_not_measured_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    monkeypatch.setattr(quickstart_timing, "BATCH_S", 1e-4)
    rows = measure_model(transformer(1, 16, 2), torch.randn(2, 5, 16))
    assert [row.name for row in rows] == ["eager", "Tessera", "Inductor"]
    assert all(row.error < 1e-5 and row.seconds > 0 and row.first_s > 0 for row in rows[:2])
    text = shown(rows)
    assert "Inductor: not measured: no C++ compiler, which Inductor needs" in text


@pytest.mark.parametrize(("error", "right"), [(2e-6, True), (3e-6, False), (float("nan"), False)])
def test_a_result_further_from_exact_than_twice_eager_is_wrong(
    error: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [ModelRow("eager", 1, 2e-3, True, 1e-6), ModelRow("Tessera", 1, 1e-3, False, error)]
    monkeypatch.setattr(quickstart_model, "measure_model", lambda model, x: rows)
    text = io.StringIO()
    assert quickstart_model.run_model(Console(file=text, width=110)) is right
    assert "2.00 *" in text.getvalue()
    assert "other programs wanted the CPU" in text.getvalue()

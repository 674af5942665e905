"""The PyTorch model of `tessera quickstart`: through `torch.compile(model, backend="tessera")`, eager, and Inductor."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tessera.cli.quickstart.timing import compare

LAYERS, WIDTH, HEADS, WORDS = 4, 256, 4, (4, 128)
MOST_ERROR: Final = 2.0
"""The largest error against float64 as a share of eager's."""
FLOOR: Final = 1e-6
"""Errors of this share of the largest value are rounding, whoever makes them."""


@dataclass(frozen=True)
class ModelRow:
    """One way to run the model. `reason` says why there are no figures."""

    name: str
    first_s: float = 0.0
    seconds: float = 0.0
    quiet: bool = True
    error: float = 0.0
    reason: str | None = None


def transformer(layers: int = LAYERS, width: int = WIDTH, heads: int = HEADS) -> nn.Module:
    """A transformer's encoder as PyTorch has it, with random weights."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True)
    model: nn.Module = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return model.eval()


def run_model(console: Console) -> bool:
    """Runs the model each way, and shows times and errors. Gives whether Tessera's result is right."""
    model = transformer()
    x = torch.randn(*WORDS, WIDTH, generator=torch.Generator().manual_seed(0), device="cpu")
    with console.status("running a PyTorch model"):
        rows = measure_model(model, x)
    title = f'torch.compile(model, backend="tessera"): a transformer of {LAYERS} layers, {WORDS[0]} x {WORDS[1]} words'
    console.print(model_table(rows, title))
    errors = {row.name: row.error for row in rows}
    return errors["Tessera"] <= max(MOST_ERROR * errors["eager"], FLOOR)


def measure_model(model: nn.Module, x: Tensor) -> list[ModelRow]:
    """A row for each way: the first call, the median of later ones in turns, the error against float64."""
    ways: dict[str, Callable[[Tensor], Any]] = {"eager": model, "Tessera": torch.compile(model, backend="tessera")}
    reason = without_inductor()
    if reason is None:
        ways["Inductor"] = torch.compile(model, backend="inductor")
    with torch.inference_mode():
        exact = transformer_in_float64(model, x)
        first, errors = {}, {}
        for name, way in ways.items():
            begin = time.perf_counter()
            found = way(x)
            first[name] = time.perf_counter() - begin
            errors[name] = float((found.double() - exact).abs().max() / exact.abs().max())
        medians = compare({name: lambda way=way: way(x) for name, way in ways.items()})  # type: ignore[misc]
    rows = [ModelRow(name, first[name], *medians[name], errors[name]) for name in ways]
    return rows if reason is None else [*rows, ModelRow("Inductor", reason=reason)]


def transformer_in_float64(model: nn.Module, x: Tensor) -> Tensor:
    """What the model gives without rounding."""
    result: Tensor = model.double()(x.double())
    model.float()
    return result


def without_inductor() -> str | None:
    """Why Inductor cannot run here, None where it can: it needs a C++ compiler."""
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return "no C++ compiler, which Inductor needs"
    return None


def model_table(rows: list[ModelRow], title: str) -> Table:
    """The ways one below the other, with eager's time as a multiple of each."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("run by", no_wrap=True)
    for column in ("first call", "time", "eager's time / its", "error"):
        shown.add_column(column, justify="right", no_wrap=True)
    eager = rows[0].seconds
    for row in rows:
        if row.reason is not None:
            shown.add_row(row.name, "", "not measured", "", "")
            continue
        ratio = f"{eager / row.seconds:.2f}" + ("" if row.quiet else " *")
        shown.add_row(row.name, f"{row.first_s:.1f} s", f"{1e3 * row.seconds:.3f} ms", ratio, f"{row.error:.0e}")
    notes = [f"{row.name}: not measured: {row.reason}" for row in rows if row.reason is not None]
    if not all(row.quiet for row in rows):
        notes.append("* other programs wanted the CPU all the while; run it again on a quiet machine")
    shown.caption, shown.caption_justify = "\n".join(notes) or None, "left"
    return shown

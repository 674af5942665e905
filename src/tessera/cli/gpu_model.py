"""`tessera doctor --gpu-model`: the constants of the model of GPUs, and the choices of schedules that hang on them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tessera import op
from tessera import target as targets
from tessera.cli.sizes import PIPED_WIDTH
from tessera.compiler.device.gpu import gpu_problems
from tessera.errors import UnsupportedTargetError
from tessera.scheduling.families.gpu_sensitivity import WORTH, Sensitivity, sensitivities
from tessera.scheduling.model.gpu_constants import Constant
from tessera.target import Target

HERE = "here"

_PRODUCTS = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (1, 4096, 4096),
    (16, 4096, 4096),
    (128, 4096, 4096),
    (4096, 768, 3072),
    (4096, 14336, 4096),
)
"""(m, n, k): squares, decoding, and the layers of a GPT and of a Llama."""
_ROWS: tuple[tuple[str, Any, tuple[int, ...]], ...] = (
    ("softmax", op.softmax, (8192, 4096)),
    ("softmax", op.softmax, (64, 65536)),
    ("layer_norm", op.layer_norm, (8192, 1024)),
    ("rms_norm", op.rms_norm, (128, 4096)),
    ("gelu", op.gelu, (4096, 4096)),
    ("sum", op.sum, (1 << 25,)),
)

_ATTENTION: tuple[tuple[str, list[tuple[int, ...]]], ...] = (
    ("attention, 4096 tokens, heads of 64", [(1, 32, 4096, 64)] * 3),
    ("attention, 4096 tokens, heads of 128", [(1, 16, 4096, 128)] * 3),
    ("attention, a token to 4096 keys", [(16, 32, 1, 128), (16, 8, 4096, 128), (16, 8, 4096, 128)]),
    ("attention, a token to 32768 keys", [(1, 32, 1, 128), (1, 8, 32768, 128), (1, 8, 32768, 128)]),
)
"""Shapes of queries, keys and values."""


def report(name: str) -> None:
    """Prints the table for the GPU `name`, "here" for the one of this machine. Raises UnsupportedTargetError for one
    that is unknown, not here, or has no figures.
    """
    gpu = targets.detect_gpu() if name == HERE else targets.gpu(name)
    problems = dict(_problems(gpu))
    found = sensitivities(gpu, problems)
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    table = Table(title=f"what the model of {gpu.name} assumes; predicted, no GPU was asked")
    for heading in ("constant", "value", "interval", "choices that change", "lose at most", "source"):
        table.add_column(heading, overflow="fold")
    for each in found:
        table.add_row(*map(Text, _row(each)))
    console.print(table)
    moving = sum(bool(each.flips) for each in found)
    console.print(
        f"{moving} of {len(found)} constants change a choice by more than {WORTH:.0%} of the time of one of "
        f"{len(problems)} kernels; measure these first."
    )
    for each in found:
        for flip in each.flips[:2]:
            console.print(f"{each.constant.name}={_number(flip.at)}: {flip.label}, {flip.loss:.1%}:", markup=False)
            differing = [knob for knob in flip.taken if flip.taken[knob] != flip.instead.get(knob)]
            for said, schedule in (("taken", flip.taken), ("better", flip.instead)):
                text = ", ".join(f"{knob}={schedule[knob]}" for knob in differing)
                console.print(f"  {said:7}{text}", markup=False)


def _problems(gpu: Target) -> Iterator[tuple[str, Any]]:
    has_bytes = gpu.datasheet is not None and gpu.datasheet.peak("fp8_e4m3") is not None
    dtypes = ("bf16", "fp8_e4m3") if has_bytes else ("bf16",)
    asked: list[tuple[str, Any, Any, str]] = []
    for (m, n, k), dtype in itertools.product(_PRODUCTS, dtypes):
        asked.append((f"matmul {m}x{n}x{k} {dtype}", op.matmul, (m, n, k), dtype))
    for name, made, extents in _ROWS:
        asked.append((f"{name} {'x'.join(map(str, extents))} bf16", made, extents, "bf16"))
    asked += [(f"{name} bf16", op.flash_attention, shapes, "bf16") for name, shapes in _ATTENTION]
    for label, operator, shape, dtype in asked:
        try:
            found = gpu_problems(operator, shape, dtype, gpu)
        except UnsupportedTargetError:  # such operands have no kernel there
            continue
        for kernel, problem in found.items():
            yield (label if len(found) == 1 else f"{label}, {kernel}"), problem


def _row(found: Sensitivity) -> tuple[str, ...]:
    constant = found.constant
    return (
        constant.name,
        f"{_number(constant.value)} {constant.unit}",
        f"{_number(constant.least)} to {_number(constant.most)}",
        str(len({flip.label for flip in found.flips})),
        f"{found.loss:.1%}" if found.flips else "",
        _source(constant),
    )


def _source(constant: Constant) -> str:
    return f"{constant.meaning}; {constant.source}"


def _number(value: float) -> str:
    return f"{value:g}"

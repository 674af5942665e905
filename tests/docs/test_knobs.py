"""docs/knobs.md: the knobs of every kernel family, as the spaces themselves declare them.

`pytest tests/docs/test_knobs.py --update-goldens` rewrites the page after a knob or a rule has changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tessera import op
from tessera.compiler.tune.tuning import CompilerBackend, heaviest_problem
from tessera.tuning.interfaces import TuningProblem

PAGE = Path(__file__).parents[2] / "docs" / "knobs.md"

HEADING = """# The knobs of kernels on CPUs

A schedule is one value for each knob of a kernel. These are the knobs of each family of kernels and the rules that a
schedule keeps, as the spaces themselves declare them: the page is made from them
(`pytest tests/docs/test_knobs.py --update-goldens`), and a test keeps the two equal. What a knob may be set to depends
on shape, dtype and processor: an error that refuses a value says it, and [tuning](autotuning.md) shows how to choose or
to pin. GPUs have [knobs of their own](gpu.md).

```python
import torch
from tessera import op

y = op.matmul(torch.randn(64, 64), torch.randn(64, 64))
assert "pack_b" in y.inspect("schedule")
pinned = op.matmul(torch.randn(64, 64), torch.randn(64, 64)).pin(unroll=2)
assert "unroll = 2" in pinned.inspect("schedule")
```
"""


def _convolution() -> TuningProblem:
    weight = op.constant(torch.zeros(32, 32, 3, 3))
    result = op.conv2d(torch.zeros(1, 32, 14, 14).contiguous(memory_format=torch.channels_last), weight, padding=1)
    problem = heaviest_problem(result.structure)
    assert problem is not None
    return problem


def problems() -> dict[str, TuningProblem]:
    """A problem of each family, by the title of its section."""
    backend = CompilerBackend()
    return {
        "Matrix products": backend.subject(op.matmul, (256, 256, 256), "fp32"),
        "Maps and reductions: softmax, norms, elementwise chains": backend.subject(op.softmax, (256, 256), "fp32"),
        "Attention": backend.subject(op.flash_attention, (1, 4, 128, 64), "fp32"),
        "Convolutions": _convolution(),
        "Windows: depthwise convolutions, pools": backend.subject(
            op.depthwise_conv2d, [(1, 32, 16, 16), (32, 1, 3, 3)], "fp32"
        ),
    }


def section(title: str, problem: TuningProblem) -> str:
    """One family's knobs and rules as tables."""
    space = problem.space
    knobs = [f"| `{knob.name}` | {knob.purpose} |" for knob in space.knobs]  # type: ignore[attr-defined]
    rules = [f"| {rule.name} | {rule.reason} |" for rule in space.rules]  # type: ignore[attr-defined]
    tables = ["| knob | what it decides |", "| --- | --- |", *knobs, "", "| rule | |", "| --- | --- |", *rules]
    return "\n".join([f"## {title}", "", *tables])


def page() -> str:
    """docs/knobs.md as the spaces say it."""
    return "\n\n".join([HEADING.rstrip(), *(section(*each) for each in problems().items())]) + "\n"


def test_the_page_of_knobs_is_what_the_spaces_declare(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(page())
    assert page() == PAGE.read_text(), "docs/knobs.md is out of date: pytest tests/docs/test_knobs.py --update-goldens"


def test_every_family_is_on_the_page() -> None:
    tables = [tuple(knob.name for knob in problem.space.knobs) for problem in problems().values()]  # type: ignore[attr-defined]
    assert len(set(tables)) == len(tables)  # no problem fell into another one's family

"""`schedule.search_space` and `schedule.autotune`: of which kernel they speak, and what they make it choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import op, schedule
from tessera.compiler.trace.tracing import TracedFunction
from tessera.errors import ArgumentError, ScheduleError, TuneSpaceEmptyError
from tests import forked


def new_kernel() -> TracedFunction:
    """A kernel that nobody has spoken of."""

    @op.kernel
    def product(a: Any, b: Any) -> Any:
        return op.relu(a @ b)

    return product


def test_choices_limit_what_the_model_chooses() -> None:
    product = new_kernel()
    space = schedule.search_space(tile_sizes=[(96, 512, 128)], unroll=[2])
    a, b = torch.randn(200, 150), torch.randn(150, 310)
    result = product(a, b)
    assert product.schedule["tile"] == (96, 512, 128)
    assert product.schedule["unroll"] == 2
    assert [config.source for config in space.configs] == ["model"]
    torch.testing.assert_close(result.torch(), (a @ b).relu(), atol=1e-4, rtol=1e-4)


FIRST = """
import torch
from tessera import op, schedule

@op.kernel
def product(a, b):
    return op.relu(a @ b)

schedule.search_space(tile_sizes=[(96, 512, 128)], unroll=[2])
product(torch.randn(200, 150), torch.randn(150, 310))
print(product.schedule["tile"], product.schedule["unroll"])
"""


def test_choices_limit_the_first_kernel_of_a_process(cache_dir: Path) -> None:
    done = forked.run(FIRST, warm=True)
    assert done.stdout == "(96, 512, 128) 2\n", done.stderr


def test_inside_a_kernel_it_speaks_of_that_one() -> None:
    seen = []

    @op.kernel
    def inner(a: Any) -> Any:
        seen.append(schedule.search_space(parallel=["outer"]))
        return op.exp(a)

    new_kernel()
    inner(torch.randn(40, 30)).eval()
    assert seen[0].name == "inner"
    assert len(seen[0].configs) == 1
    assert schedule.search_space(inner) is seen[0]


def test_a_bare_call_needs_a_kernel() -> None:
    done = forked.run("from tessera import schedule; schedule.autotune(max_trials=3)", warm=True)
    assert "E_NO_SUBJECT: there is no kernel that this could speak of" in done.stderr


def test_what_cannot_be_is_refused() -> None:
    product = new_kernel()
    with pytest.raises(ArgumentError, match="cost_model='oracle'"):
        schedule.autotune(product, cost_model="oracle")
    with pytest.raises(ArgumentError, match="max_trials=0"):
        schedule.autotune(product, max_trials=0)
    with pytest.raises(ArgumentError, match="'many' as max_trials"):
        schedule.autotune(product, max_trials="many")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="vectorize has no choices"):
        schedule.search_space(product, vectorize=[])
    with pytest.raises(ArgumentError, match="is no kernel"):
        schedule.search_space(torch.relu)  # type: ignore[arg-type]
    schedule.search_space(product, warp=[3])
    with pytest.raises(ScheduleError, match="product has no knob 'warp'"):
        product(torch.randn(4, 5), torch.randn(5, 6))
    other = new_kernel()
    schedule.search_space(other, tile_sizes=[(3, 5, 7)])
    with pytest.raises(TuneSpaceEmptyError, match="no legal schedule"):
        other(torch.randn(40, 50), torch.randn(50, 60))


def test_a_limited_kernel_keeps_to_its_choices_whatever_is_remembered(cache_dir: Path) -> None:
    a, b = torch.randn(70, 90), torch.randn(90, 60)
    free, limited = new_kernel(), new_kernel()
    found = schedule.autotune(free, max_trials=3)
    free(a, b).eval()
    unroll = found.configs[0].schedule["unroll"]
    schedule.search_space(limited, unroll=[4 if unroll != 4 else 2], fusion=[True])
    space = schedule.autotune(limited, max_trials=3)
    limited(a, b).eval()
    assert [config.source for config in space.configs] == ["measured"]
    assert limited.schedule["unroll"] == space.choices["unroll"][0]
    # What was found for the limited kernel is no winner for others.
    (kept,) = [path for path in cache_dir.glob("v1/*/*.json") if not path.name.endswith(".model.json")]
    assert f'"unroll": {unroll}' in kept.read_text()


def test_what_is_no_list_of_choices_is_refused() -> None:
    product = new_kernel()
    with pytest.raises(ArgumentError, match="unroll=2 is no list of choices"):
        schedule.search_space(product, unroll=2)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="budget_s=0"):
        schedule.autotune(product, budget_s=0)


def test_an_illegal_space_names_rules_and_knobs() -> None:
    product = new_kernel()
    schedule.search_space(product, tile_sizes=[(3, 5, 7)], unroll=[2])
    with pytest.raises(TuneSpaceEmptyError) as error:
        product(torch.randn(40, 50), torch.randn(50, 60))
    assert any(hint.startswith("knob tile alone permits no legal schedule") for hint in error.value.hints)
    assert any(hint.startswith("rule ") for hint in error.value.hints)

"""`@op.autotune`: kernels that are tuned before their first call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import autotune, op, schedule
from tessera.compiler.trace.tracing import TracedFunction
from tessera.errors import ArgumentError, ScheduleError, TuneSpaceEmptyError

A, B = torch.randn(70, 90), torch.randn(90, 60)


def product(a: Any, b: Any) -> Any:
    return a @ b  # one kernel, whatever is tuned: with a map behind it `fusion=False` could win


def test_it_makes_a_kernel_that_is_right_and_tuned_once(cache_dir: Path) -> None:
    tuned = op.autotune(max_trials=3)(product)
    for _ in range(2):
        torch.testing.assert_close(tuned(A, B).torch(), A @ B, atol=1e-4, rtol=1e-4)
    (config,) = schedule.search_space(tuned).configs
    assert config.source == "measured"
    assert len(config.trials) <= 3
    assert tuned.schedule == config.schedule


def test_it_decorates_without_arguments_and_kernels_too(cache_dir: Path) -> None:
    assert isinstance(op.autotune(product), TracedFunction)
    kernel = op.kernel(product)
    assert op.autotune(max_trials=2)(kernel) is kernel


def test_configs_are_the_only_schedules_and_all_are_measured(cache_dir: Path) -> None:
    configs: list[Any] = [
        {"tile": (48, 64, 64), "unroll": 1},
        "tile=(48,64,64), unroll=2",
        {"tile_shape": [96, 128, 64], "unroll": 1},
    ]
    tuned = op.autotune(configs=configs)(product)
    tuned(A, B).eval()
    (config,) = schedule.search_space(tuned).configs
    said = {(trial.schedule["tile"], trial.schedule["unroll"]) for trial in config.trials}
    assert said <= {((48, 64, 64), 1), ((48, 64, 64), 2), ((96, 128, 64), 1)}
    assert (config.schedule["tile"], config.schedule["unroll"]) in said
    assert tuned.schedule == config.schedule


def test_configs_that_are_illegal_for_a_size_are_left_out(cache_dir: Path) -> None:
    tuned = op.autotune(configs=[{"tile": (3, 5, 7)}, {"unroll": 2}])(product)
    tuned(A, B).eval()
    (config,) = schedule.search_space(tuned).configs
    assert config.schedule["unroll"] == 2
    with pytest.raises(TuneSpaceEmptyError, match="none of the configs of product is legal") as error:
        op.autotune(configs=[{"tile": (3, 5, 7)}])(product)(A, B)
    assert error.value.hints
    with pytest.raises(ScheduleError, match="no knob 'warp'"):
        op.autotune(configs=[{"warp": 3}])(product)(A, B)


def test_a_cache_of_its_own_travels(cache_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "configs"
    op.autotune(cache=str(folder), max_trials=2)(product)(A, B).eval()
    assert list(folder.rglob("*.json"))
    assert not list(cache_dir.glob("v1/*/*.json"))
    again = op.autotune(cache=str(folder), max_trials=2)(product)
    again(A, B).eval()
    assert [config.source for config in schedule.search_space(again).configs] == ["cache"]
    assert any(layer == "configs" and count for layer, count in autotune.status().entries.items())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cache": "a b"}, "no name of a cache"),
        ({"configs": []}, "configs is empty"),
        ({"configs": [{}]}, "is no config"),
        ({"configs": [3]}, "is no config"),
        ({"max_trials": 0}, "max_trials=0"),
        ({"budget_s": -1}, "budget_s=-1"),
        ({"budget_s": float("nan")}, "budget_s=nan"),
        ({"cost_model": "oracle"}, "oracle"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        op.autotune(**given)(product)

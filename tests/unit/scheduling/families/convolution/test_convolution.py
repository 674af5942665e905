"""Schedules of convolutions: defaults, rules and cost."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import pytest
import torch

from tessera.dtypes import bf16, fp32
from tessera.scheduling.families.convolution.problem import ConvolutionProblem, block_of, scratch_bytes
from tessera.scheduling.families.convolution.space import default_schedule, space
from tessera.scheduling.families.convolution.weights import WeightPanels
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.language.schedule import KnobValue
from tessera.scheduling.lowering.spec import Window
from tessera.scheduling.lowering.tails import row_tails, row_tiles
from tests.unit.scheduling.problems import AVX2, AVX512, ZEN4_CORE

THREE = Window((1, 1), (1, 1), (1, 1))


def problem(**changes: Any) -> ConvolutionProblem:
    """A window of 3 x 3 over 56 x 56 pixels of 64 channels on a machine with AVX-512."""
    fields: dict[str, Any] = {
        "images": 1,
        "rows": 56,
        "columns": 56,
        "outputs": 64,
        "depth": 64,
        "kernel": (3, 3),
        "window": THREE,
        "image_dtype": fp32,
        "out_dtype": fp32,
        "accumulator": fp32,
        "element": fp32,
        "pairs": False,
        "panel": 32,
        "turned": False,
        "mapped": False,
        "out_turned": False,
        "target": AVX512,
        "workers": 2,
    }
    return ConvolutionProblem(**{**fields, **changes})


def test_defaults_are_legal_whatever_the_extents() -> None:
    for target, panel in ((AVX512, 32), (AVX2, 16)):
        for (rows, columns), depth, kernel in product(
            ((1, 1), (7, 7), (1, 3136), (13, 29), (0, 5)), (1, 3, 64, 4096), ((1, 1), (3, 3), (7, 1))
        ):
            posed = problem(
                target=target, panel=panel, rows=rows, columns=columns, depth=depth, kernel=kernel, outputs=33
            )
            assert space(posed).violations(default_schedule(posed)) == ()


def test_blocks_of_the_image_stay_in_their_part_of_the_cache() -> None:
    for size, depth in ((112, 3), (56, 64), (28, 512), (14, 512)):
        posed = problem(rows=size, columns=size, depth=depth, outputs=512)
        assert scratch_bytes(default_schedule(posed), posed) <= 256 << 10
    # All of a small image, so that weights which are further away are read once.
    posed = problem(rows=7, columns=7, depth=512, outputs=512)
    assert block_of(default_schedule(posed), posed)[0] == 7
    assert 256 << 10 < scratch_bytes(default_schedule(posed), posed) <= 512 << 10
    near = problem(rows=7, columns=7, depth=512, outputs=16, kernel=(2, 2))  # weights that stay in the second cache
    assert scratch_bytes(default_schedule(near), near) <= 256 << 10


def test_register_tiles_leave_no_short_ends_to_rows_where_those_would_wait() -> None:
    def tile(columns: int, starts: int = 2, latency: int = 4) -> tuple[KnobValue, KnobValue]:
        core = dataclasses.replace(ZEN4_CORE, fma_per_cycle=starts, fma_latency=latency)
        posed = problem(rows=columns, columns=columns, depth=256, outputs=256, panel=16, target=AVX2.with_core(core))
        schedule = default_schedule(posed)
        return schedule.integers("micro")[1], schedule["tails"]

    assert [tile(columns) for columns in (7, 14, 28, 56)] == [(4, True), (5, False), (6, False), (6, True)]
    assert tile(14, starts=1, latency=2) == (6, True)  # two pixels wait for nothing


def test_the_model_sees_ends_of_rows_that_wait() -> None:
    model = RooflineModel(None, AVX2)
    posed = problem(rows=7, columns=7, depth=256, outputs=256, panel=16, target=AVX2)
    four, six = (default_schedule(posed).replace(micro=(1, pixels, 16), tile=(7, 12)) for pixels in (4, 6))
    assert model.estimate(posed, four).terms["compute"] < 0.9 * model.estimate(posed, six).terms["compute"]


def test_rules_name_what_is_wrong() -> None:
    posed = problem()
    start, legal = default_schedule(posed), space(posed)
    assert legal.violations(start.replace(micro=(2, 14, 32), tile=(14, 56))) == ("vector-registers",)
    assert legal.violations(start.replace(micro=(1, 14, 16))) == ("packed-weights",)
    assert legal.violations(start.replace(window=(3, 3, 32))) == ("window-matches",)
    assert legal.violations(start.replace(tile=(14, 50))) == ("block-of-whole-tiles",)
    assert legal.violations(start.replace(pack_a=False)) == ("in-place-without-padding",)
    assert legal.violations(start.replace(parallel="batch")) == ("batch-to-split",)
    far = problem(window=Window((1, 1), (1, 1), (1, 2)))
    assert "runs-of-neighbours" in space(far).violations(default_schedule(far).replace(merge=True))


def test_workers_get_even_shares() -> None:
    assert default_schedule(problem(images=8))["parallel"] == "batch"
    assert default_schedule(problem(rows=7, columns=7, outputs=512, depth=512))["parallel"] == "columns"


def test_results_are_fetched_where_short_sums_wait_for_their_stores() -> None:
    pointwise = {"kernel": (1, 1), "window": Window((1, 1), (0, 0), (1, 1))}
    assert default_schedule(problem(images=8, **pointwise))["pipeline_depth"] == 2
    assert default_schedule(problem(rows=7, columns=7, **pointwise))["pipeline_depth"] == 1
    assert default_schedule(problem(images=8, depth=512, **pointwise))["pipeline_depth"] == 1


def test_sizes_of_images_share_schedules() -> None:
    sizes = [(side + side % 7, side) for side in range(8, 200, 3)]
    schedules = {default_schedule(problem(rows=rows, columns=columns, workers=1)) for rows, columns in sizes}
    assert len(schedules) == 1
    everything = product((1, 4, 9, 40), (1, 4, 9, 40, 300), (1, 2, 3, 8))
    assert len({default_schedule(problem(rows=r, columns=c, images=i)) for r, c, i in everything}) <= 8


def test_small_images_are_one_block_and_blocks_of_large_ones_are_even_and_fit() -> None:
    start = default_schedule(problem())
    assert block_of(start, problem(rows=7, columns=7)) == (7, 14)
    for rows, columns in ((56, 56), (300, 57), (40, 500), (1, 1), (1000, 3)):
        posed = problem(rows=rows, columns=columns)
        by, bx = block_of(start, posed)
        assert scratch_bytes(start.replace(tile=(by, bx)), posed) <= scratch_bytes(start, posed)
        assert -(-rows // by) * by - rows < -(-rows // by)
        assert bx % 14 == 0


@pytest.mark.parametrize(("pixels", "heights"), [(14, (7, 4, 2)), (12, (6, 3, 2)), (7, (4, 2)), (2, (1,)), (1, ())])
def test_tails_are_smaller_tiles(pixels: int, heights: tuple[int, ...]) -> None:
    assert row_tails(pixels) == heights
    for columns in range(100):
        tiles = row_tiles(columns, (pixels, *heights))
        assert 0 <= sum(height * count for height, count in tiles.items()) - columns <= 1
        assert all(tiles[height] <= 1 for height in heights)


def test_the_model_counts_lost_pixels_and_lone_workers() -> None:
    model = RooflineModel(None, AVX512)

    def seconds(posed: ConvolutionProblem, **changes: Any) -> float:
        return model.estimate(posed, default_schedule(posed).replace(**changes)).seconds

    whole = problem()
    assert seconds(whole) < seconds(problem(columns=57))
    assert seconds(whole) < seconds(whole, micro=(1, 4, 32))
    assert seconds(whole) < seconds(problem(workers=1))
    assert seconds(problem(depth=128)) > 1.5 * seconds(whole)


@pytest.mark.parametrize(("outputs", "depth", "group"), [(32, 4, 1), (33, 5, 2), (7, 3, 2), (70, 1, 1)])
def test_panels_hold_the_weights_and_zeros(outputs: int, depth: int, group: int) -> None:
    weights = torch.randn(2, outputs, 3, 2, depth)
    form = WeightPanels(32, group, bf16 if group == 2 else fp32)
    target = torch.full((form.nbytes(weights.shape, fp32),), 0x7F, dtype=torch.uint8)
    form.fill(weights, target)
    panels = target.view(form.dtype.torch).view(form.shape(weights.shape))
    back = panels.permute(0, 1, 5, 2, 3, 4, 6).flatten(5, 6).flatten(1, 2)
    assert torch.equal(back[:, :outputs, ..., :depth], weights.to(form.dtype.torch))
    assert (back[:, outputs:] == 0).all()
    assert (back[..., depth:] == 0).all()

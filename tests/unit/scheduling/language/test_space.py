"""Spaces: every rule has a name that its violations carry, and restricting a space keeps it legal."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tessera.dtypes import DType, bf16, fp32
from tessera.errors import ScheduleError, TuneSpaceEmptyError
from tessera.scheduling.families.product import space as contraction_space
from tessera.scheduling.families.rows import space as mapreduce_space
from tessera.scheduling.language.knobs import Knob
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tests.unit.scheduling import specs
from tests.unit.scheduling.problems import AMX, AVX512, contraction_problem, map_reduce_problem

SQUARE = contraction_problem(specs.matmul(fp32), 512, 512, 512)
PACKED = contraction_space.default_schedule(SQUARE).replace(tile=(144, 512, 256), pack_a=True, pack_b=True)
COLUMNS_OF_B = contraction_problem(specs.matmul(fp32, b_axes="nk"), 512, 512, 512)
MAPPED = contraction_problem(specs.matmul(fp32, prologue="relu"), 512, 512, 512)
NARROW = contraction_problem(specs.matmul(bf16), 512, 512, 512)
UNIT = contraction_problem(specs.matmul(bf16), 512, 512, 512, target=AMX, native_bf16=True)
WEIGHTS = contraction_problem(specs.matmul(bf16, b_axes="nk"), 32, 512, 512, target=AMX, native_bf16=True)

BROKEN: dict[str, tuple[contraction_space.ContractionProblem, dict[str, KnobValue]]] = {
    "vector-registers": (SQUARE, {"micro": (14, 64)}),
    "full-lanes": (SQUARE, {"micro": (2, 4)}),
    "block-holds-tile": (SQUARE, {"tile": (144, 8, 256), "micro": (6, 16)}),
    "scratch-memory": (SQUARE, {"tile": (768, 4096, 16384)}),
    "sums-have-a-place": (NARROW, {"tile": (48, 128, 128)}),
    "prologue-needs-packing": (MAPPED, {"pack_a": False}),
    "whole-rows": (replace(SQUARE, a_mapped=True, a_walks=1), {"tile": (144, 512, 256)}),
    "dots-along-k": (SQUARE, {"order": "dots", "micro": (1, 2), "pack_a": False, "pack_b": False}),
    "batch-to-split": (SQUARE, {"parallel": "batch"}),
    "packed-panels": (replace(SQUARE, b_panels=32), {"pack_b": True}),
    "siblings-in-registers": (replace(SQUARE, b_panels=16, products=2), {"pack_b": False, "sums": "scratch"}),
    "matrix-unit": (UNIT, {"unit": "matrix", "micro": (64, 32), "tile": (128, 128, 512)}),
    "turned-sums": (WEIGHTS, {"unit": "matrix", "pack_b": False, "micro": (32, 32), "tile": (32, 64, 512)}),
    "packed-by-all": (SQUARE, {"pack_b": "shared"}),
    "strided-needs-packing": (COLUMNS_OF_B, {"pack_b": False}),
}


def test_every_rule_of_products_is_tried() -> None:
    assert {rule.name for rule in contraction_space.RULES} == set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_of_products_is_named(name: str) -> None:
    problem, changes = BROKEN[name]
    space = contraction_space.space(problem)
    schedule = PACKED.replace(**changes)
    assert name in space.violations(schedule)
    with pytest.raises(ScheduleError) as error:
        space.check(schedule)
    assert any(hint.startswith(f"rule {name}: ") for hint in error.value.hints)


ROWS = map_reduce_problem(specs.rows("softmax", fp32), 64, 5000)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vector-registers", {"tile": (1, 512)}),
        ("scratch-holds-row", {"keep": 4096}),
        ("streaming-needs-size", {"nontemporal": True}),
        ("one-worker", {"parallel": "lanes"}),
    ],
)
def test_a_broken_rule_of_rows_is_named(name: str, changes: dict[str, KnobValue]) -> None:
    space = mapreduce_space.space(replace(ROWS, workers=1))
    assert space.violations(space.default.replace(**changes)) == (name,)
    assert name in {rule.name for rule in mapreduce_space.RULES}


def test_only_rows_that_are_walked_again_fetch_the_next() -> None:
    space = mapreduce_space.space(map_reduce_problem(specs.add_scaled(fp32), 64, 5000))
    assert space.violations(space.default.replace(ahead=True)) == ("ahead-needs-passes",)


def test_dear_second_passes_of_large_operands_and_norms_fetch_the_next_row() -> None:
    assert mapreduce_space.space(map_reduce_problem(specs.rows("softmax", fp32), 4096, 4096)).default["ahead"]
    assert not mapreduce_space.space(map_reduce_problem(specs.rows("softmax", fp32), 16, 4096)).default["ahead"]
    norm = specs.rows("layer_norm", fp32, 2, eps=1e-3)
    assert all(mapreduce_space.space(map_reduce_problem(norm, rows, 4096)).default["ahead"] for rows in (16, 4096))


@pytest.mark.parametrize("problem", [SQUARE, COLUMNS_OF_B, MAPPED, NARROW])
def test_defaults_are_legal(problem: contraction_space.ContractionProblem) -> None:
    space = contraction_space.space(problem)
    assert space.violations(space.default) == ()
    assert space.check(space.default) is space.default


@pytest.mark.parametrize("m", [1, 2, 5, 12, 13, 40, 300])
@pytest.mark.parametrize("k", [0, 1, 300, 9000])
@pytest.mark.parametrize("dtype", [fp32, bf16])
def test_defaults_are_legal_for_few_rows_and_deep_sums(m: int, k: int, dtype: DType) -> None:
    space = contraction_space.space(contraction_problem(specs.matmul(dtype), m, 700, k))
    assert space.violations(space.default) == ()


@pytest.mark.parametrize("m", [13, 32, 33, 128])
@pytest.mark.parametrize("dtype", [fp32, bf16])
def test_few_rows_walk_few_rows_of_b_at_once_where_these_are_far_apart(m: int, dtype: DType) -> None:
    def chosen(n: int) -> Schedule:
        posed = contraction_problem(specs.matmul(dtype), m, n, 4096, target=AVX512, native_bf16=dtype is bf16)
        space = contraction_space.space(posed)
        assert space.violations(space.default) == ()
        return space.default

    far, near = chosen(4096 // dtype.itemsize), chosen(4096 // dtype.itemsize - 1)
    in_place = dtype is fp32 or m <= 32
    assert far["pack_b"] is near["pack_b"] is not in_place
    assert far.integers("tile")[2] == (16 if in_place else 256)
    assert near.integers("tile")[2] == 256


@pytest.mark.parametrize("m", [2, 12])
def test_so_do_fewest_rows_of_pairs(m: int) -> None:
    posed = contraction_problem(specs.matmul(bf16), m, 2048, 4096, target=AVX512, native_bf16=True)
    assert contraction_space.default_schedule(posed).integers("tile") == (48, 4096, 16)
    nearer = replace(posed, n=2047)
    assert contraction_space.default_schedule(nearer).integers("tile") == (48, 4096, 256)


def test_draws_and_neighbours_are_legal() -> None:
    space = contraction_space.space(SQUARE)
    generator = random.Random(0)
    for _ in range(20):
        schedule = space.draw(generator)
        assert space.violations(schedule) == ()
        for neighbour in space.neighbours(schedule):
            assert space.violations(neighbour) == ()
            changed = [knob for knob in schedule if schedule[knob] != neighbour[knob]]
            assert len(changed) == 1


def test_candidates_are_all_legal_schedules() -> None:
    space = mapreduce_space.space(ROWS)
    candidates = list(space.candidates())
    assert len(set(candidates)) == len(candidates)
    assert space.default in candidates
    assert all(space.violations(candidate) == () for candidate in candidates)


def test_an_unknown_knob_is_named() -> None:
    with pytest.raises(ScheduleError) as error:
        contraction_space.space(SQUARE).check(PACKED.replace(wings=2))
    assert "no knob is called 'wings'" in error.value.hints[0]


def test_neighbours_of_ordered_choices_are_the_next_ones() -> None:
    knob = Knob("unroll", (1, 2, 4, 8), "")
    assert knob.neighbours(2) == (1, 4)
    assert knob.neighbours(1) == (2,)
    assert knob.neighbours(3) == (1, 2, 4, 8)
    assert Knob("order", ("a", "b", "c"), "").neighbours("b") == ("a", "c")
    assert Knob("pack", (False, True), "").neighbours(True) == (False,)


# -- restricting ------------------------------------------------------------------------------------------------------


def test_restricting_pins_a_knob_everywhere() -> None:
    space = contraction_space.space(SQUARE).restricted({"tile": [(96, 256, 128)]})
    assert space.default["tile"] == (96, 256, 128)
    assert {space.draw(random.Random(seed))["tile"] for seed in range(5)} == {(96, 256, 128)}


def test_restricting_keeps_a_default_that_is_allowed() -> None:
    whole = contraction_space.space(SQUARE)
    assert whole.restricted({"unroll": [1, whole.default["unroll"]]}).default == whole.default


def test_restricting_moves_an_illegal_default_to_a_legal_schedule() -> None:
    # Without packing, B's columns cannot be read: the default must take another layout of choices.
    space = contraction_space.space(SQUARE).restricted({"micro": [(14, 64), (2, 16)]})
    assert space.violations(space.default) == ()
    assert space.default["micro"] == (2, 16)


def test_restricting_to_nothing_legal_says_which_rules_reject_it() -> None:
    with pytest.raises(TuneSpaceEmptyError) as error:
        contraction_space.space(SQUARE).restricted({"micro": [(14, 64)], "tile": [(144, 512, 256)]})
    assert error.value.message == "no legal schedule has micro in [(14, 64)] and tile in [(144, 512, 256)]"
    alone, strictest, *_ = error.value.hints
    assert alone == "knob micro alone permits no legal schedule with [(14, 64)]"
    assert strictest.startswith("rule vector-registers rejects")
    assert strictest.endswith(next(rule.reason for rule in contraction_space.RULES if rule.name == "vector-registers"))


def test_a_space_without_legal_schedules_says_so_when_drawn_from() -> None:
    space = mapreduce_space.space(ROWS)
    empty = type(space)(
        (*(knob for knob in space.knobs if knob.name != "tile"), Knob("tile", ((1, 1 << 20),), "")),
        space.rules,
        space.problem,
        space.default,
    )
    with pytest.raises(TuneSpaceEmptyError) as error:
        empty.draw(random.Random(0), tries=50)
    assert "rule vector-registers rejects" in error.value.hints[0]

"""A fixed order of sums leaves every choice open that does not change it, and names the rule that closes the others."""

from __future__ import annotations

import random

import pytest

from tessera.dtypes import bf16, fp32
from tessera.scheduling.families.ordering import keeping_order, sum_order
from tessera.scheduling.families.product import space as contraction_space
from tessera.scheduling.families.rows import space as mapreduce_space
from tests.unit.scheduling import specs
from tests.unit.scheduling.problems import AVX512, contraction_problem, map_reduce_problem

PRODUCT = contraction_problem(specs.matmul(fp32), 512, 512, 3000)
PAIRS = contraction_problem(specs.matmul(bf16), 512, 512, 3000, target=AVX512, native_bf16=True)
ROWS = map_reduce_problem(specs.rows("softmax", fp32), 64, 5000)


@pytest.mark.parametrize("problem", [PRODUCT, PAIRS])
def test_products_keep_the_depth_of_a_block(problem: contraction_space.ContractionProblem) -> None:
    space = keeping_order(contraction_space.space(problem))
    drawn = [space.draw(random.Random(seed)) for seed in range(20)]
    assert {sum_order(schedule, problem) for schedule in drawn} == {sum_order(space.default, problem)}
    assert len({schedule["tile"] for schedule in drawn}) > 1
    assert len({schedule["micro"] for schedule in drawn}) > 1


def test_rows_keep_the_width_of_a_step() -> None:
    space = keeping_order(mapreduce_space.space(ROWS))
    assert {schedule["tile"] for schedule in space.candidates()} == {space.default["tile"]}
    assert len({schedule["keep"] for schedule in space.candidates()}) > 1


def test_the_default_is_the_one_that_decides() -> None:
    space = contraction_space.space(PRODUCT).restricted({"tile": [(96, 256, 128)]})
    kept = keeping_order(space)
    assert kept.default == space.default
    assert kept.violations(kept.default) == ()


def test_depths_that_hold_all_of_k_are_one_order() -> None:
    shallow = contraction_problem(specs.matmul(fp32), 512, 512, 100)
    default = contraction_space.default_schedule(shallow)
    whole = [default.replace(tile=(144, 512, depth)) for depth in (128, 256, 512)]
    assert len({sum_order(schedule, shallow) for schedule in whole}) == 1
    assert sum_order(default.replace(tile=(144, 512, 64)), shallow) != sum_order(default, shallow)


def test_another_order_breaks_a_rule_with_a_name() -> None:
    products, rows = keeping_order(contraction_space.space(PRODUCT)), keeping_order(mapreduce_space.space(ROWS))
    mc, nc, kc = products.default.integers("tile")
    assert products.violations(products.default.replace(tile=(mc, nc, kc // 2))) == ("fixed-order",)
    assert rows.violations(rows.default.replace(tile=(1, rows.default.integers("tile")[1] // 2))) == ("fixed-order",)
    assert products.violations(products.default.replace(fusion=False)) == ("fixed-order",)

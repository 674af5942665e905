"""Layouts of a block: the elimination is exact, and finds what people found by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import ArgumentError
from tessera.sharding.planner.blocks import transformer_block
from tessera.sharding.planner.calibration import EFFICIENCIES
from tessera.sharding.planner.communication import cost
from tessera.sharding.planner.elimination import CostTable, minimise
from tessera.sharding.planner.layouts import BlockOperator, LayoutChoice, SplitAxis, choose_layouts
from tessera.sharding.planner.rates import device_rates
from tessera.sharding.planner.transformer import Transformer
from tessera.target.topology import topology

RATES = device_rates(topology("gb200-nvl72"), "bf16", EFFICIENCIES["GB200"])
TP = SplitAxis("tp", 8, 1)
DP = SplitAxis("dp", 4, 8)


@st.composite
def sums(draw: st.DrawFn) -> tuple[dict[int, int], list[CostTable]]:
    count = draw(st.integers(1, 6))
    sizes = {each: draw(st.integers(1, 3)) for each in range(count)}
    tables = []
    for _ in range(draw(st.integers(1, 8))):
        some = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
        shape = [sizes[each] for each in some]
        values = draw(st.lists(st.integers(0, 50), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        tables.append(CostTable(tuple(some), np.array(values, float).reshape(shape)))
    return sizes, tables


@given(sums())
def test_elimination_finds_the_least_sum(problem: tuple[dict[int, int], list[CostTable]]) -> None:
    sizes, tables = problem

    def total(values: Sequence[int]) -> float:
        return float(sum(table.costs[tuple(values[each] for each in table.variables)] for table in tables))

    found = minimise(sizes, tables)
    least = min(total(values) for values in itertools.product(*(range(sizes[each]) for each in sorted(sizes))))
    assert found.cost == least
    assert total([found.values[each] for each in sorted(sizes)]) == least
    assert 1 <= found.width <= len(sizes)


def test_a_problem_that_is_too_wide_is_refused() -> None:
    sizes = dict.fromkeys(range(9), 30)
    pairs = [CostTable(pair, np.zeros((30, 30))) for pair in itertools.combinations(range(9), 2)]
    with pytest.raises(ArgumentError, match="too many to decide at once"):
        minimise(sizes, pairs)


def product(
    name: str, left: str, right: str, result: str, source: int | None, extents: dict[str, int]
) -> BlockOperator:
    points = float(np.prod([extents[factor] for factor in {*left, *right}]))
    return BlockOperator(name, (tuple(left), tuple(right)), tuple(result), (source, None), (False, True), 2 * points)


def mlp(extents: dict[str, int]) -> tuple[BlockOperator, ...]:
    """x + down(gelu(up(x))), fed with its own result."""
    return (
        BlockOperator("x", (("t", "h"),), ("t", "h"), (4,), (False,), 0.0),
        product("up", "th", "hf", "tf", 0, extents),
        BlockOperator("gelu", (("t", "f"),), ("t", "f"), (1,), (False,), 0.0),
        product("down", "tf", "fh", "th", 2, extents),
        BlockOperator("add", (("t", "h"), ("t", "h")), ("t", "h"), (0, 3), (False, False), 0.0),
    )


WIDE = {"t": 16_384, "h": 12_288, "f": 49_152}


def split(found: LayoutChoice, name: str) -> dict[str, str]:
    return dict(next(layout.split for layout in found.layouts if layout.operator == name))


def test_an_mlp_is_split_as_megatron_splits_it_and_sequence_parallel_between() -> None:
    operators = mlp(WIDE)
    found = choose_layouts(operators, WIDE, [TP], RATES)
    assert split(found, "up") == split(found, "gelu") == split(found, "down") == {"tp": "f"}
    assert split(found, "x") == split(found, "add") == {"tp": "t"}
    down = found.layouts[3]
    assert down.of(("t", "h"), pending=True) == "-, - | sum tp"
    assert found.layouts[1].of(("h", "f")) == "-, tp"
    assert down.of(("f", "h")) == "tp, -"
    # A gather, a reduce-scatter, and their mirrors backward.
    moved = 2.0 * WIDE["t"] * WIDE["h"]
    wire = 2 * sum(cost(RATES.topology, kind, moved, 8).seconds for kind in ("all_gather", "reduce_scatter"))
    alone = choose_layouts(operators, WIDE, [], RATES).seconds / 8
    assert found.seconds == pytest.approx(alone + wire, rel=0.02)


def test_two_axes_split_tokens_and_weights() -> None:
    found = choose_layouts(mlp(WIDE), WIDE, [TP, DP], RATES)
    assert split(found, "up") == {"tp": "f", "dp": "t"}
    assert split(found, "add") == {"tp": "t", "dp": "t"}
    assert found.layouts[4].of(("t", "h")) == "tp*dp, -"


def test_few_tokens_are_not_worth_a_transfer_of_weights_gradients() -> None:
    small = {"t": 8, "h": 12_288, "f": 49_152}
    found = choose_layouts(mlp(small), small, [TP], RATES)
    assert split(found, "up") == {"tp": "f"}  # splitting t would combine 1.2 GB of gradients


def test_a_whole_row_is_never_split() -> None:
    norm = BlockOperator("norm", (("t", "h"),), ("t", "h"), (None,), (False,), 0.0, frozenset("h"))
    found = choose_layouts((norm,), {"t": 4, "h": 4096}, [TP], RATES)
    assert split(found, "norm") == {"tp": ""}  # t has 4, tp 8


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_choice_is_the_best_of_all(data: st.DataObject) -> None:
    extents = {factor: data.draw(st.sampled_from([3, 8, 64, 4096])) for factor in "abcd"}
    operators = [product("first", "ab", "bc", "ac", None, extents)]
    if data.draw(st.booleans()):
        operators.append(BlockOperator("f", (("a", "c"),), ("a", "c"), (0,), (False,), 0.0, frozenset("c")))
    operators.append(product("last", "ac", "cd", "ad", len(operators) - 1, extents))
    found = choose_layouts(tuple(operators), extents, [TP], RATES)
    # Every assignment, each operator held to one split by making all other factors whole.
    least = float("inf")
    options = [
        ["", *sorted({*"".join("".join(dims) for dims in (*o.operands, o.result))} - o.whole)] for o in operators
    ]
    for choice in itertools.product(*options):
        held = tuple(
            operator._replace(whole=frozenset("abcd") - {factor})
            for operator, factor in zip(operators, choice, strict=True)
        )
        least = min(least, choose_layouts(held, extents, [TP], RATES).seconds)
    assert found.seconds == pytest.approx(least)


def test_extents_that_are_missing_are_named() -> None:
    with pytest.raises(ArgumentError, match="up: f have no extent"):
        choose_layouts(mlp(WIDE), {"t": 8, "h": 8}, [TP], RATES)


def test_a_transformer_block_gets_column_then_row_splits() -> None:
    model = Transformer(96, 12_288, 96, 49_152, 51_200, 2048)
    operators, extents = transformer_block(model, 8, outside=frozenset(("batch",)))
    found = choose_layouts(operators, extents, [TP], RATES, split_weights=True)
    assert {split(found, name)["tp"] for name in ("queries", "attention", "projection")} == {"heads"}
    assert {split(found, name)["tp"] for name in ("up", "down")} == {"inner"}
    assert {split(found, name)["tp"] for name in ("norm", "second norm", "residual", "x")} == {"sequence"}
    assert found.width <= 3
    assert choose_layouts(operators, extents, [TP], RATES, split_weights=True) is found  # equal blocks are planned once


def test_weights_that_need_not_be_split_are_kept_where_an_all_to_all_is_less() -> None:
    model = Transformer(96, 12_288, 96, 49_152, 51_200, 2048)
    operators, extents = transformer_block(model, 8, outside=frozenset(("batch",)))
    free = choose_layouts(operators, extents, [TP], RATES)
    # As DeepSpeed-Ulysses has it: projections by sequence, attention by heads.
    assert [split(free, name)["tp"] for name in ("queries", "attention", "projection")] == [
        "sequence",
        "heads",
        "sequence",
    ]
    assert free.seconds < choose_layouts(operators, extents, [TP], RATES, split_weights=True).seconds


def test_with_the_batch_free_small_weights_are_kept_whole_and_large_ones_split() -> None:
    model = Transformer(96, 12_288, 96, 49_152, 51_200, 2048)
    operators, extents = transformer_block(model, 8)
    free = choose_layouts(operators, extents, [TP], RATES)
    assert {split(free, name)["tp"] for name in ("queries", "attention", "projection")} == {"batch"}
    assert {split(free, name)["tp"] for name in ("up", "down")} == {"inner"}
    held, extents = transformer_block(model, 8, outside=frozenset(("batch",)))
    assert free.seconds < choose_layouts(held, extents, [TP], RATES).seconds

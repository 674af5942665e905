"""Binding: which launches an expression needs, over which memory; views cost none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import op
from tessera.compiler import planning
from tessera.compiler.bind.binding import bind
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device import compilers
from tessera.handle import Tensor
from tessera.runtime.plans.plan import BoundPlan
from tests.unit.compiler.conftest import LaunchesOf


def names(launches: list[Launch]) -> list[str]:
    return [launch.call.item.name.rstrip("_0123456789") for launch in launches]


def pending(*shape: int) -> Tensor:
    """An expression, so that what is applied to it is a node and no view of an input."""
    return op.exp(torch.rand(shape))


def test_a_transpose_is_read_in_place(launches: LaunchesOf) -> None:
    first, second = launches(op.transpose(pending(3, 4), (1, 0)) + op.exp(torch.rand(4, 3)))[-2:]
    assert names([first, second]) == ["exp", "exp_add"]
    (source, words), *_ = [a for a in second.call.arguments if a[0].storage is first.call.arguments[-1][0].storage]
    assert source.shape == (4, 3)
    assert source.strides == (1, 4)
    assert sorted(words[:2]) == [3, 4]


def test_a_slice_moves_the_offset_and_the_strides(launches: LaunchesOf) -> None:
    source, result = launches(op.relu(pending(6, 10)[1:5:2, 3:]))
    view = result.call.arguments[0][0]
    assert view.storage is source.call.arguments[-1][0].storage
    assert (view.shape, view.strides, view.offset_bytes) == ((2, 7), (20, 1), (10 + 3) * 4)


def test_a_broadcast_has_stride_0(launches: LaunchesOf) -> None:
    launch = launches(op.relu(op.broadcast_to(pending(1, 4), (3, 4))))[-1]
    assert launch.call.arguments[0][0].strides == (0, 1)


def test_a_reshape_of_contiguous_memory_copies_nothing(launches: LaunchesOf) -> None:
    assert names(launches(op.relu(op.reshape(pending(4, 6), (2, 12))))) == ["exp", "relu"]


def test_a_reshape_of_strided_memory_copies_once(launches: LaunchesOf) -> None:
    x = op.reshape(op.transpose(pending(4, 6), (1, 0)), (3, 8))
    assert names(launches(op.relu(x))) == ["exp", "copy", "relu"]


def test_a_concatenation_is_written_by_what_makes_its_parts(launches: LaunchesOf) -> None:
    first, second = launches(op.concat([pending(2, 3), pending(2, 5)], axis=1))
    assert names([first, second]) == ["exp", "exp"]
    parts = [launch.call.arguments[-1][0] for launch in (first, second)]
    assert parts[0].storage is parts[1].storage
    assert parts[0].storage.nbytes == 2 * 8 * 4
    assert [(part.shape, part.strides, part.offset_bytes) for part in parts] == [
        ((2, 3), (8, 1), 0),
        ((2, 5), (8, 1), 12),
    ]


def test_parts_of_parts_and_views_of_parts_are_written_in_their_places(launches: LaunchesOf) -> None:
    lines = [op.concat([pending(2, 1, 3), pending(2, 1, 3)], axis=1) for _ in range(2)]
    found = launches(op.concat([op.reshape(line, (2, 1, 2, 3)) for line in lines], axis=1))
    assert names(found) == ["exp"] * 4
    written = [launch.call.arguments[-1][0] for launch in found]
    assert len({view.storage for view in written}) == 1
    assert sorted(view.offset_bytes for view in written) == [0, 12, 24, 36]


def test_a_view_of_a_part_that_has_no_strides_there_is_copied(launches: LaunchesOf) -> None:
    x = op.concat([op.reshape(pending(4, 3), (2, 6)), pending(2, 1)], axis=1)
    assert sorted(names(launches(x))) == ["copy", "exp", "exp"]


def test_parts_that_are_read_elsewhere_or_are_none_of_a_kernels_are_copied(launches: LaunchesOf) -> None:
    twice, leaf = pending(2, 3), torch.rand(2, 5)
    assert names(launches(op.concat([twice, leaf, twice[:, :1]], axis=1))) == ["exp", "copy", "copy", "copy"]
    assert names(launches(op.concat([twice, twice], axis=1))) == ["exp", "copy", "copy"]


def test_a_result_is_written_in_the_order_in_which_it_is_reshaped(launches: LaunchesOf) -> None:
    heads = op.transpose(pending(2, 3, 5, 4), (0, 2, 1, 3))
    made = launches(op.relu(op.reshape(heads, (2, 5, 12))))
    assert names(made) == ["exp", "relu"]
    assert made[0].call.arguments[-1][0].strides == (60, 4, 12, 1)
    merged = op.transpose(op.reshape(pending(2, 3, 5, 4), (6, 5, 4)), (1, 0, 2))
    assert names(launches(op.relu(op.reshape(merged, (5, 24))))) == ["exp", "relu"]
    apart = op.transpose(op.reshape(pending(6, 5, 4), (2, 3, 5, 4)), (0, 2, 1, 3))  # no strides of (6, 5, 4) do
    assert names(launches(op.relu(op.reshape(apart, (10, 12))))) == ["exp", "copy", "relu"]


def test_a_last_dimension_that_would_be_scattered_is_not(launches: LaunchesOf) -> None:
    turned = op.transpose(pending(2, 3, 5), (0, 2, 1))
    assert names(launches(op.relu(op.reshape(turned, (2, 15))))) == ["exp", "copy", "relu"]


def test_results_in_another_order_are_right() -> None:
    x, y = torch.randn(2, 3, 7, 5), torch.randn(5, 4)
    heads = op.transpose(op.softmax(op.tensor(x)), (0, 2, 1, 3)).reshape(14, 15)
    torch.testing.assert_close(op.tanh(heads).torch(), x.softmax(-1).transpose(1, 2).reshape(14, 15).tanh())
    products = op.transpose(op.matmul(x, y), (2, 0, 1, 3)).reshape(7, 24)
    torch.testing.assert_close(products.torch(), (x @ y).permute(2, 0, 1, 3).reshape(7, 24))
    joined = op.concat([op.tanh(op.tensor(x[0, 0])), op.matmul(x[0, 1], y), op.tensor(x[0, 2])], axis=1)
    torch.testing.assert_close(joined.torch(), torch.cat([x[0, 0].tanh(), x[0, 1] @ y, x[0, 2]], 1))


@pytest.mark.parametrize(
    "expression",
    [lambda x: x * 1, lambda x: op.transpose(x * 1, (1, 0)), lambda x: op.reshape(x * 1, (2, 6))[1:]],
    ids=["unchanged", "transposed", "reshaped"],
)
def test_results_that_rewrites_reduce_to_an_input_own_their_memory(expression: Callable[[Tensor], Tensor]) -> None:
    source = torch.rand(3, 4)
    result = expression(op.tensor(source)).torch()
    before = result.clone()
    source.zero_()
    assert torch.equal(result, before)
    assert torch.count_nonzero(before) > 0


def test_a_reduction_of_dimensions_that_do_not_merge_runs_on_a_copy(launches: LaunchesOf) -> None:
    gaps = torch.rand(4, 6, 10)[:, :3, :5]
    assert names(launches(op.sum(gaps, axis=(1, 2)))) == ["copy", "sum"]
    torch.testing.assert_close(op.sum(gaps, axis=(1, 2)).torch(), gaps.sum((1, 2)))


def test_nothing_is_launched_for_nothing(launches: LaunchesOf) -> None:
    assert launches(op.relu(torch.rand(0, 4))) == []
    assert op.relu(torch.rand(0, 4)).torch().shape == (0, 4)


def test_new_extents_of_a_known_pattern_run_the_kernel_that_is_there(launches: LaunchesOf) -> None:
    first, second = (launches(op.softmax(torch.rand(rows, 40), axis=-1))[0] for rows in (30, 31))
    compiler = compilers.kernel_compiler()
    assert compiler.planner.kernel(first.choice) is compiler.planner.kernel(second.choice)
    assert first.call.shaped.extents != second.call.shaped.extents


def test_another_memory_layout_has_a_kernel_of_its_own(launches: LaunchesOf) -> None:
    rows = launches(op.softmax(torch.rand(30, 40), axis=-1))[0]
    columns = launches(op.softmax(torch.rand(40, 30).T, axis=-1))[0]
    assert rows.choice != columns.choice


def test_temporaries_share_memory_where_their_lives_do_not_overlap() -> None:
    x = torch.rand(64, 64)
    chain, expected = op.tensor(x), x
    for _ in range(6):
        chain, expected = op.softmax(op.matmul(chain, x), axis=0), torch.softmax(expected @ x, 0)
    program = planning.program_of(chain.structure)
    plan, kernels = bind(program, chain.structure.post_order(), compilers.kernel_compiler())
    assert len(kernels) == 12
    assert isinstance(plan, BoundPlan)
    # Of eleven temporaries two live at a time: one of them lies in the memory of the result.
    assert plan.arena_bytes == x.nbytes
    torch.testing.assert_close(chain.torch(), expected)


def test_an_extent_of_1_is_walked_and_broadcasts() -> None:
    column, row = torch.rand(5, 1), torch.rand(1, 7)
    torch.testing.assert_close((op.tensor(column) + row).torch(), column + row)
    torch.testing.assert_close(op.sum(op.tensor(column) * row, axis=0).torch(), (column * row).sum(0))
    torch.testing.assert_close(op.matmul(row.T, row).torch(), row.T @ row)

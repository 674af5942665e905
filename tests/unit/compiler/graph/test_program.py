"""Programs: what binding needs to know of a fused module, as plain Python."""

from __future__ import annotations

import torch

from tessera import op
from tessera.compiler.graph.program import KernelItem, LayoutItem, Program
from tessera.dtypes import fp32, int64
from tests.unit.compiler.conftest import ProgramOf


def kernels(program: Program) -> list[KernelItem]:
    return [item for item in program.items if isinstance(item, KernelItem)]


def test_a_fused_product_is_one_kernel_over_m_n_and_k(program_of: ProgramOf) -> None:
    program = program_of(op.gelu(op.matmul(torch.ones(3, 4), torch.ones(4, 5)) + torch.ones(5)))
    (kernel,) = kernels(program)
    assert kernel.family == "contraction"
    m, n, k = kernel.domain
    assert [program.values[value].dims for value in kernel.inputs] == [(m, k), (k, n), (n,)]
    assert kernel.loads == ((0, (0, 2)), (1, (2, 1)), (2, (1,)))
    assert kernel.stores == ((0, 1),)
    assert program.roots == kernel.outputs


def test_a_column_reduction_names_the_dimensions_that_it_reduces(program_of: ProgramOf) -> None:
    program = program_of(op.sum(torch.ones(2, 3, 4), axis=1))
    (kernel,) = kernels(program)
    assert (kernel.family, kernel.reduced) == ("column", (1, 2))
    assert kernel.stores == ((0, 2),)


def test_an_input_that_is_read_two_ways_is_two_arrays(program_of: ProgramOf) -> None:
    x = op.tensor(torch.ones(3, 3))
    (kernel,) = kernels(program_of(op.matmul(x, x)))
    assert len(kernel.inputs) == 1
    assert kernel.loads == ((0, (0, 2)), (0, (2, 1)))


def test_values_have_dtypes_and_extents_in_the_order_of_their_making(program_of: ProgramOf) -> None:
    program = program_of(op.argmax(torch.ones(3, 4), axis=1))
    assert [value.dtype for value in program.values] == [fp32, int64]
    assert program.leaves == (0,)


def test_layout_operators_stay_items_of_their_own(program_of: ProgramOf) -> None:
    x = op.exp(torch.ones(2, 3, 4))
    program = program_of(op.concat([op.transpose(x, (1, 0, 2)), torch.ones(3, 2, 4)], axis=2))
    transpose, concat = (item for item in program.items if isinstance(item, LayoutItem))
    assert (transpose.movement, transpose.permutation) == ("permuted", (1, 0, 2))
    assert (concat.movement, concat.axis) == ("joined", 2)
    assert concat.inputs[0] == transpose.output


def test_one_program_serves_all_extents(program_of: ProgramOf) -> None:
    small, large = (program_of(op.softmax(op.tensor(torch.ones(rows, 8)) * 2.0, axis=-1)) for rows in (3, 300))
    assert small is large


def test_the_log_says_what_was_rewritten_and_fused(program_of: ProgramOf) -> None:
    x = op.tensor(torch.ones(3, 4))
    program = program_of(op.relu(op.matmul(x * 1, torch.ones(4, 5))))
    fired = [firing.rule for firing in program.log]
    assert fired[0] == "drop-neutral-element"
    assert fired[-1] == "fuse-contraction"
    assert str(program.log[-1]) == "fuse-contraction: relu . matmul -> kernel matmul_relu_0"


def test_a_root_may_be_an_argument(program_of: ProgramOf) -> None:
    program = program_of(op.tensor(torch.ones(3)) * 1)
    assert program.items == ()
    assert program.roots == (0,)

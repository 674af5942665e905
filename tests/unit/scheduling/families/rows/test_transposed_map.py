"""Maps of transposed operands: whatever legal schedule is drawn, blocks that are turned give what torch does."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.dtypes import DType, bf16, fp32, fp64, int32
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import print_module
from tessera.ir.verification import verify
from tessera.scheduling.families.rows.cost import map_reduce_work
from tessera.scheduling.families.rows.lowering import lower_map_reduce
from tessera.scheduling.families.rows.space import default_schedule, space
from tessera.scheduling.families.rows.transposed import transposed_axis
from tessera.scheduling.model.machine import machine
from tests.unit.scheduling import specs
from tests.unit.scheduling.problems import AVX2, AVX512, map_reduce_problem
from tests.whole import examples


@settings(max_examples=examples(12, 25))
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from((fp32, bf16, fp64, int32)), st.integers(0, 1 << 20))
def test_every_legal_schedule_adds_a_transposed_matrix(rows: int, columns: int, dtype: DType, seed: int) -> None:
    spec = specs.add_transposed(dtype)
    target = random.Random(seed).choice((AVX2, AVX512))
    schedule = space(map_reduce_problem(spec, rows, columns, target)).draw(random.Random(seed))
    module = lower_map_reduce(spec, schedule, target.vector_bits // 32)
    verify(module)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-99, 99, (columns, rows + 3), generator=generator).to(dtype.torch)[:, :rows].T
    y = torch.randint(-99, 99, (rows, columns + 5), generator=generator).to(dtype.torch)[:, :columns]
    out = torch.full((rows, columns), -1, dtype=dtype.torch)
    run_kernel(module, [x, y, out], partition=random.Random(seed))
    assert torch.equal(out, x + y)


@settings(max_examples=examples(5, 10))
@given(st.integers(1, 20), st.integers(1, 3), st.integers(1, 20), st.sampled_from(("outer", "lanes")))
def test_other_axes_lie_around_the_blocks(rows: int, batch: int, columns: int, parallel: str) -> None:
    spec = specs.add_transposed(fp32, ("o0", "o1"))
    problem = map_reduce_problem(spec, rows, columns, AVX512)
    schedule = default_schedule(problem).replace(tile=(8, 16), parallel=parallel)
    x, y = torch.randn(columns, batch, rows).permute(2, 1, 0), torch.randn(rows, batch, columns)
    out = torch.full((rows, batch, columns), float("nan"))
    run_kernel(lower_map_reduce(spec, schedule, 16), [x, y, out], partition=random.Random(rows))
    assert torch.equal(out, x + y)


def test_what_is_walked_along_its_rows_is_no_transposed_map() -> None:
    assert transposed_axis(specs.add_transposed(fp32)) == "o0"
    assert transposed_axis(specs.add_scaled(fp32)) is None
    assert transposed_axis(specs.rows("softmax", fp32)) is None


@pytest.mark.parametrize(("rows", "columns", "tile"), [(500, 500, (16, 16)), (3, 500, (4, 16)), (500, 5, (16, 8))])
def test_blocks_are_as_large_as_a_narrow_matrix_needs(rows: int, columns: int, tile: tuple[int, int]) -> None:
    problem = map_reduce_problem(specs.add_transposed(fp32), rows, columns, AVX512)
    assert default_schedule(problem)["tile"] == tile
    assert default_schedule(replace(problem, live=16))["tile"] == (4, tile[1])


def test_the_cost_model_prefers_blocks_to_gathered_rows() -> None:
    problem = map_reduce_problem(specs.add_transposed(fp32), 2000, 2000, AVX512)
    blocks = default_schedule(problem)
    rates = machine(None, AVX512, problem.workers)
    turned, gathered = (map_reduce_work(problem, each, rates) for each in (blocks, blocks.replace(tile=(1, 64))))
    assert turned.compute_s < gathered.compute_s / 2


def test_edges_are_code_of_one_kernel() -> None:
    problem = map_reduce_problem(specs.add_transposed(fp32), 500, 500, AVX512)
    text = print_module(lower_map_reduce(specs.add_transposed(fp32), default_schedule(problem), 16))
    assert text.count('"tessera.tile.store"') == 2, "blocks inside, and one piece of code for all others"

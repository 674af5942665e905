"""Reductions of rows and of columns in one walk, as a family of kernels."""

from __future__ import annotations

from tessera.scheduling.families.family import Family, pays
from tessera.scheduling.families.rows.cost import map_reduce_work
from tessera.scheduling.families.rows.space import default_schedule
from tessera.scheduling.families.rows_and_columns import binding, space
from tessera.scheduling.families.rows_and_columns.lowering import lower_rows_and_columns
from tessera.scheduling.families.rows_and_columns.steps import FEW_ROWS, IN_PARTS, NOT_ROWS
from tessera.scheduling.lowering.spec import RowsAndColumnsSpec

FAMILY = Family(
    name="rows-and-columns",
    kernels="reductions of rows and columns",
    spec=RowsAndColumnsSpec,
    problem=space.RowsAndColumnsProblem,
    lower=lambda spec, schedule, target: lower_rows_and_columns(spec, schedule, target.vector_bits // 32),
    space=space.space,
    rules=space.RULES,
    start=default_schedule,
    pose=space.poser,
    work=map_reduce_work,
    sum_order=lambda schedule, problem: (schedule.integers("tile")[1],),
    is_shared=lambda p: pays(p.target, nbytes=p.bytes_in + p.bytes_out),
    accumulation=lambda p: "fp32",
    regions=("rows_and_columns",),
    lay_out=binding.lay_out,
    read=binding.rows_and_columns_spec,
    decompositions=(NOT_ROWS, FEW_ROWS, IN_PARTS),
)

"""Operands that are packed for all workers, as a family of kernels."""

from __future__ import annotations

from tessera.scheduling.families.family import Family, pays
from tessera.scheduling.families.packing import lowering
from tessera.scheduling.families.packing.posing import packing_poser
from tessera.scheduling.lowering.spec import PackingSpec

FAMILY = Family(
    name="packing",
    kernels="operands packed for all workers",
    spec=PackingSpec,
    problem=lowering.PackingProblem,
    lower=lambda spec, schedule, target: lowering.lower_packing(spec, schedule),
    space=lowering.space,
    rules=lowering.RULES,
    start=lowering.default_schedule,
    pose=packing_poser,
    work=lowering.packing_work,
    sum_order=lambda schedule, problem: (),
    is_shared=lambda p: pays(p.target, nbytes=2 * p.n * p.k * p.batch * p.dtype.itemsize),
    accumulation=lambda p: p.dtype.name,
)

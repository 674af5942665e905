"""Products whose second operand all workers pack together: a kernel that packs, and the product over its panels.

The panels are those of constants (`product/forms.py`), in memory of the plan. Bytes can only be multiplied four at a
time where they lie so; of all else a worker's own panels do as well, but every worker packs them for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.dtypes import DType, int32
from tessera.lazy.structures.structure import contiguous_strides
from tessera.scheduling.families.decomposition import (
    Array,
    DecomposableCall,
    Decomposition,
    Itself,
    KernelStep,
    Steps,
    Workspace,
)
from tessera.scheduling.families.packing.operand import packing_spec
from tessera.scheduling.families.product.forms import packed_argument, panels_of
from tessera.scheduling.families.product.problem import SHARED
from tessera.scheduling.lowering.spec import Panels

PANELS = "panels"


@dataclass(frozen=True)
class _Source:
    """What is packed: its dtype, its shape, and the extent and the stride of each axis that it walks."""

    dtype: DType
    shape: tuple[int, ...]
    walked: Mapping[str, tuple[int, int]]

    def array(self, index: int) -> Array:
        """The argument with what its descriptor holds."""
        extents, strides = zip(*self.walked.values(), strict=True)
        return Array(index, extents, strides, self.dtype, self.shape)

    def in_words(self, group: int) -> _Source | None:
        """The same memory in elements of 4 bytes, each of `group` steps of K; None where these do not lie so."""
        (depth, step), others = self.walked["k"], [each for axis, each in self.walked.items() if axis != "k"]
        apart = all(stride % group == 0 for extent, stride in others if extent > 1)
        if group == 1 or step != 1 or depth % group or not apart:
            return None
        walked = {axis: (extent, stride // group) for axis, (extent, stride) in self.walked.items()}
        shape = tuple([extent for extent, _ in walked.values()])
        return _Source(int32, (*shape[:-1], depth // group), {**walked, "k": (depth // group, 1)})


def _steps(case: DecomposableCall) -> Steps:
    spec = case.spec
    found = panels_of(spec, case.extents["n"], case.target)
    assert found is not None, "rule packed-by-all"
    index, form = found
    operand, words = case.arguments[index]
    rank = len(words) // 2
    walked = dict(zip(spec.arguments[index].axes, zip(words[:rank], words[rank:], strict=True), strict=True))
    source = _Source(operand.dtype, operand.shape, walked)
    batch = [axis for axis in walked if axis not in ("k", "n")]
    shape, stored = form.shape([walked[axis][0] for axis in (*batch, "k", "n")]), form.stored or operand.dtype
    panels, filled = form.panels, Array(PANELS, *_described(shape, form.panels))
    packed = source.in_words(panels.group) if form.stored is None else None
    if packed is not None:  # groups lie side by side already: there is nothing to interleave
        flat = (*shape[:-1], 1)
        source, panels = packed, Panels(panels.width, rows=panels.rows)
        filled = Array(PANELS, *_described(flat, panels), int32, flat)
    kernel = packing_spec(f"{spec.name}_packing", source.dtype, filled.dtype or stored, panels, source.walked)
    extents = {axis: each[0] for axis, each in source.walked.items()}
    replaced = packed_argument(spec.arguments[index], form), Array(PANELS, *_described(shape, form.panels))
    return Steps(
        (
            KernelStep(kernel, (source.array(index), filled), extents, moves=True),
            Itself({index: replaced}, case.schedule.replace(pack_b=False)),
        ),
        {PANELS: Workspace(stored, shape)},
    )


def _described(shape: tuple[int, ...], panels: Panels) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The extents and strides that descriptors of panels hold."""
    extents = shape if panels.group > 1 else shape[:-1]
    return extents, contiguous_strides(extents)


SHARED_PACKING = Decomposition(
    name="shared-packing",
    why="the schedule has all workers pack the second operand together, before any of them multiplies",
    when="schedule",
    applies=lambda case: case.schedule.get("pack_b") == SHARED,
    steps=_steps,
)

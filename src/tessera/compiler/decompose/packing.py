"""Products whose second operand all workers pack together: a launch that packs, and the product over its panels.

The panels are those of constants (`constants.py`), in memory of the plan. Bytes can only be multiplied four at a time
where they lie so; of all else a worker's own panels do as well, but every worker packs them for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tessera.compiler.bind.arrays import Call, Shape, View
from tessera.compiler.bind.constants import over_panels
from tessera.compiler.bind.launches import Choice, Launch
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.decompose.gpu_chunks import StepSubject, step_call
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType, int32
from tessera.lazy.structure import contiguous_strides
from tessera.scheduling.families.product.forms import panels_of
from tessera.scheduling.families.product.space import SHARED
from tessera.scheduling.language.expression import Recorder
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import Argument, ContractionSpec, Output, PackingSpec, Panels
from tessera.target import Target


def is_packed_by_all(schedule: Schedule) -> bool:
    """Whether a schedule has all workers pack the second operand together."""
    return schedule.get("pack_b") == SHARED


def packed_by_all(
    call: Call,
    choice: Choice,
    target: Target,
    new: Callable[[Shape, DType], View],
    copying: Callable[[DType, Shape], KernelItem],
    choose: Callable[[Subject, Call], Choice],
    again: Callable[[Call, Schedule], Choice],
) -> tuple[Launch, Launch]:
    """The two launches of a product whose schedule says so, over memory that `new` makes.

    `copying` gives the item that the first one is reported as, `choose` how that runs, `again` how the second does.
    """
    spec = choice.subject.spec
    assert isinstance(spec, ContractionSpec)
    found = panels_of(spec, call.shaped.extents["n"], target)
    assert found is not None, "rule packed-by-all"
    index, form = found
    source = _source(call, index)
    shape = form.shape([source.walked[axis][0] for axis in (*source.batch, "k", "n")])
    panels = new(shape, form.stored or source.view.dtype)
    filled, inner = _Panels(panels, form.panels), source
    words = source.in_words(form.panels.group) if form.stored is None else None
    if words is not None:  # groups lie side by side already: there is nothing to interleave
        flat = (*shape[:-1], 1)
        inner, filled = (
            words,
            _Panels(
                View(panels.storage, int32, flat, contiguous_strides(flat)),
                Panels(form.panels.width, rows=form.panels.rows),
            ),
        )
    subject = _packing_subject(choice.subject, inner, filled, target, copying)
    first = step_call(
        subject, (inner.argument, filled.argument), {axis: each[0] for axis, each in inner.walked.items()}
    )
    second = over_panels(call, index, form, panels)
    return (
        Launch(first, choose(subject, first), call),
        Launch(second, again(second, choice.schedule.replace(pack_b=False)), call),
    )


@dataclass(frozen=True)
class _Source:
    """What is packed: the extent and the stride of each axis that it walks."""

    view: View
    walked: Mapping[str, tuple[int, int]]

    @property
    def batch(self) -> tuple[str, ...]:
        return tuple([axis for axis in self.walked if axis not in ("k", "n")])

    @property
    def argument(self) -> tuple[View, tuple[int, ...]]:
        """The view with what its descriptor holds."""
        extents, strides = zip(*self.walked.values(), strict=True)
        return self.view, (*extents, *strides)

    def in_words(self, group: int) -> _Source | None:
        """The same memory in elements of 4 bytes, each of `group` steps of K; None where these do not lie so."""
        (depth, step), others = self.walked["k"], [each for axis, each in self.walked.items() if axis != "k"]
        apart = all(stride % group == 0 for extent, stride in others if extent > 1)
        if group == 1 or step != 1 or depth % group or not apart:
            return None
        walked = {axis: (extent, stride // group) for axis, (extent, stride) in self.walked.items()}
        shape = tuple([extent for extent, _ in walked.values()])
        words = self.view._replace(dtype=int32, shape=(*shape[:-1], depth // group))
        return _Source(words, {**walked, "k": (depth // group, 1)})


@dataclass(frozen=True)
class _Panels:
    """Where packed elements go."""

    view: View
    form: Panels

    @property
    def argument(self) -> tuple[View, tuple[int, ...]]:
        """The view with what its descriptor holds."""
        shape = self.view.shape if self.form.group > 1 else self.view.shape[:-1]
        return self.view, (*shape, *contiguous_strides(shape))


def _source(call: Call, index: int) -> _Source:
    axes, strides = call.shaped.axes[index], call.shaped.strides[index]
    walked = {axis: (call.shaped.extents[axis], stride) for axis, stride in zip(axes, strides, strict=True)}
    return _Source(call.arguments[index][0], walked)


def _packing_subject(
    product: Subject,
    source: _Source,
    panels: _Panels,
    target: Target,
    copying: Callable[[DType, Shape], KernelItem],
) -> Subject:
    """The subject of the kernel that packs; one for each layout."""
    name = f"{product.item.name}_packing"
    spec = packing_spec(name, source.view.dtype, panels.view.dtype, panels.form, source.walked)
    key = product, spec.arguments
    known = product.item.variants.get(key)
    if not isinstance(known, Subject):
        item = replace(copying(source.view.dtype, source.view.shape), name=name, variants={})
        known = product.item.variants[key] = StepSubject(item, spec, target)
    return known


def packing_spec(
    name: str, dtype: DType, stored: DType, panels: Panels, walked: Mapping[str, tuple[int, int]]
) -> PackingSpec:
    """The kernel that packs an operand of `dtype` into panels of `stored`; `walked`: the extent and the stride of each
    of its axes, which are batch axes, k and n.
    """
    unit = next((axis for axis in ("n", "k") if walked[axis][1] == 1), None)
    batch = tuple([axis for axis in walked if axis not in ("k", "n")])
    source = Argument(dtype, tuple(walked), tuple(1 if axis == unit else None for axis in walked))
    target = Argument(stored, (*batch, "n", "k"), (None,) * (len(batch) + 2), panels=panels)
    recorder = Recorder(None)
    value = recorder.cast(recorder.load(0, dtype, source.axes), stored)
    return PackingSpec(name, (source, target), batch, (Output(1, value),))

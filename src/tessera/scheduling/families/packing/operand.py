"""The kernel that packs the second operand of a product, for the layout in which it lies."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.dtypes import DType
from tessera.scheduling.language.expression import Recorder
from tessera.scheduling.lowering.spec import Argument, Output, PackingSpec, Panels


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

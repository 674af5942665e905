"""Arrays of a kernel that slides a window over images, over its merged axes.

The domain is that of the result, then the image's rows and columns, the window's, and the image's channels. Axes are
called `o0, ...` (images and channels, and the channels of the result that one of the image becomes), y and x (of the
result), c (channels, where they lie side by side), h and w (of the image), ky and kx (of the window).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from tessera.dtypes import DType
from tessera.ir.graph.operations import GraphOperation
from tessera.rewrite.fusion.alignment import Alignment, beyond
from tessera.scheduling.binding.arrays import (
    ArrayLayout,
    ArrayRole,
    Arrays,
    Copy,
    LayoutFacts,
    Limits,
    Pattern,
    ShapedArrays,
    Tensor,
    V,
    array_layout,
    columns_of,
    in_memory,
    layout_facts,
    numbered,
    shaped_arrays,
)
from tessera.scheduling.binding.axes import Axes, merge_axes
from tessera.scheduling.binding.regions import Region, operation_of, read_region
from tessera.scheduling.binding.slides import slides_of
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import Argument, Geometry, WindowSpec

_PLACES = beyond("window", 4)
ROWS, COLUMNS, CHANNELS = _PLACES[0, "y"], _PLACES[0, "x"], _PLACES[0, "c"]
KERNEL_ROWS, KERNEL_COLUMNS = _PLACES[1, "ky"], _PLACES[1, "kx"]
"""Places in the domain, after the four of the result: of the image, and of the window."""

LINE = 16
"""Elements between the channels of one tap and those of the next, beside the channels: taps whose channels lie a power
of two apart would fall on the same sets of a cache.
"""


def lay_out(
    region: Region, domain: Sequence[int], arrays: Arrays[V], limits: Limits, copied: Copy[V]
) -> tuple[Arrays[V], ShapedArrays]:
    """The arrays of a reduction over windows, all in memory; the window's operands as lanes read them."""
    arrays = in_memory(with_taps_along_lanes(arrays, copied), copied)
    return arrays, window_arrays(domain, arrays, len(region.loads))


def window_arrays(domain: Sequence[int], arrays: Arrays[Tensor], loads: int) -> ShapedArrays:
    """Merges what lies outside the window; lanes go along channels where those of the image lie side by side."""
    image = _image(arrays)
    alignment = arrays[image][1]
    y = alignment.index(ROWS)
    x = alignment.index(COLUMNS)
    channel = 6 - y - x  # of the dimensions 1, 2 and 3 the one that is left
    columns = columns_of(arrays, len(domain))
    multiplier = domain[channel] // max(domain[CHANNELS], 1)
    spread = tuple([own * multiplier + other for own, other in zip(columns[channel], columns[CHANNELS], strict=True)])
    by_channel = _lanes_are_channels(arrays[image], domain[CHANNELS])
    outer = [(domain[0], columns[0]), (multiplier, columns[channel])]
    inner = [(place, columns[place]) for place in (y, x)]
    if not by_channel:
        outer.insert(1, (domain[CHANNELS], spread))
    merged = merge_axes([extent for extent, _ in outer], [column for _, column in outer])
    axes = Axes(
        (*merged.extents, domain[y], domain[x], *([domain[CHANNELS]] if by_channel else []), *domain[ROWS:CHANNELS]),
        (
            *merged.columns,
            *[column for _, column in inner],
            *([spread] if by_channel else []),
            *columns[ROWS:CHANNELS],
        ),
    )
    names = numbered("o", len(merged.extents), "y", "x", *("c" if by_channel else ""), "h", "w", "ky", "kx")
    facts = layout_facts(names, axes, arrays)
    roles = tuple(["image" if place == image else "result" if place >= loads else "" for place in range(len(arrays))])
    return shaped_arrays(_window_layout(facts, roles), names, axes)


def _image(arrays: Arrays[Tensor]) -> int:
    """Which array is read through the window."""
    return next(place for place, (_, alignment) in enumerate(arrays) if ROWS in alignment)


def _lanes_are_channels(image: tuple[Tensor, Alignment], channels: int) -> bool:
    view, alignment = image
    along = {axis: view.strides[dimension] for dimension, axis in enumerate(alignment)}
    return channels > 1 and along[CHANNELS] == 1 and along[COLUMNS] != 1


def with_taps_along_lanes(arrays: Arrays[V], copied: Copy[V]) -> list[tuple[V, Alignment]]:
    """The arrays, where lanes go along channels with the window's operands as lanes read them: channel after channel.

    `copied(view, strides)` makes a copy of a view in those strides: of a few elements a channel.
    """
    image = next(array for array in arrays if ROWS in array[1])
    if not _lanes_are_channels(image, image[0].shape[image[1].index(CHANNELS)]):
        return list(arrays)
    found = []
    for view, alignment in arrays:
        varies = KERNEL_ROWS in alignment or KERNEL_COLUMNS in alignment
        if varies and view.strides[0] != 1:
            channels, _, width = view.shape
            apart = -(-channels // LINE) * LINE + LINE
            found.append((copied(view, (1, width * apart, apart)), alignment))
        else:
            found.append((view, alignment))
    return found


@lru_cache(maxsize=1 << 12)
def _window_layout(facts: LayoutFacts, roles: tuple[str, ...]) -> ArrayLayout:
    names, _, _, _ = facts
    lanes = "c" if "c" in names else "x"
    forced = {"image": {"h", "w", *lanes.strip("x")}, "result": {"y", "x", lanes}, "": set[str]()}

    def role(part: str) -> ArrayRole:
        walked = frozenset(forced[part])
        return ArrayRole(walked, walked, walked, ("w",) if part == "image" and lanes == "x" else (lanes,))

    def pattern(arguments: tuple[Argument, ...]) -> Pattern:
        outer = tuple(name for name in names if name.startswith("o"))
        return Pattern(arguments, (*outer, "y") if lanes == "c" else outer, None, lanes, True)

    return array_layout(pattern, facts, [role(part) for part in roles])


def window_spec(region: Region, pattern: Pattern) -> WindowSpec:
    """The specification of a reduction over a sliding window."""
    recorder = _WindowRecorder(None)
    outputs = read_region(region, pattern, recorder)
    geometry = _geometry(operation_of(region, "window"))
    return WindowSpec(region.name, pattern.arguments, pattern.outer, pattern.lanes, geometry, outputs)


def _geometry(operation: GraphOperation) -> Geometry:
    anchor = operation.anchor()
    assert anchor is not None
    rows, columns = slides_of(anchor)
    height, width = anchor.given[rows.taps], anchor.given[columns.taps]
    assert height is not None and width is not None
    return Geometry(
        (height, width), (rows.step, columns.step), (rows.before, columns.before), (rows.apart, columns.apart)
    )


class _WindowRecorder(Recorder):
    """A recorder whose reductions go over the window, and whose image varies with it."""

    def load(self, argument: int, dtype: DType, axes: Iterable[str]) -> Value:
        """An element of an argument: one that walks h and w is read through the window."""
        walked = set(axes)
        if walked >= {"h", "w"}:
            walked = walked - {"h", "w"} | {"y", "x", "ky", "kx"}
        return self.make("load", (), (argument,), dtype, walked)

    def reduce(self, kind: str, a: Value) -> Value:
        """Reduces `a` over the window."""
        return self.make("reduce", (a,), (kind,), a.dtype, a.axes - {"ky", "kx"}, a.stage + 1)

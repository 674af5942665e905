"""How a window slides over an image, read off an anchor."""

from __future__ import annotations

from typing import NamedTuple

from tessera.ir.anchors.anchor import Anchor, Index


class Slide(NamedTuple):
    """A window along one dimension of an image: the result at `place` sees the elements `step * place + apart * tap -
    before`, as if the image went on for `before` elements in front and `after` behind. The window has the axis `taps`.
    """

    taps: str
    step: int
    apart: int
    before: int
    after: int


def slides_of(anchor: Anchor) -> tuple[Slide, Slide]:
    """Those along rows and columns of the image that an anchor reads through a window."""
    rows, columns = (_slide(index) for indices in anchor.operands for index in indices if index.steps)
    return rows, columns


def _slide(index: Index) -> Slide:
    (_, taps), (step, apart) = index.axes, index.steps
    return Slide(taps, step, apart, index.before, index.after)

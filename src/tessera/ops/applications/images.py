"""Rules of convolutions and of windows over images."""

from __future__ import annotations

import random

from tessera.ops.applications.rule import AbstractValue, Application, Rule, WantedOperand, floating


def _image(chance: random.Random, x: AbstractValue, channels_last: bool) -> tuple[int, int, int, int]:
    """(images, channels, height, width) of a value of four dimensions, and of others drawn."""
    if len(x.shape) == 4 and max(x.shape) <= 24:
        n, *rest = x.shape
        c, h, w = (rest[2], *rest[:2]) if channels_last else rest
        if h and w:
            return n, c, h, w
    n, c = chance.choice((1, 1, 2)), chance.choice((1, 2, 3, 4, 8, 17))
    return n, c, chance.randint(1, 9), chance.randint(1, 9)


def _window(chance: random.Random, extents: tuple[int, int], largest: int) -> dict[str, tuple[int, int]]:
    """Size, stride, dilation and padding (before, after) of windows over two extents, at least one window each."""
    size = (chance.choice((1, 1, 2, 3)), chance.choice((1, 1, 2, 3)))
    stride = (chance.choice((1, 1, 2, 3)), chance.choice((1, 1, 2, 3)))
    dilation = (chance.choice((1, 1, 2)), chance.choice((1, 1, 2)))
    sides = []
    for extent, count, step in zip(extents, size, dilation, strict=True):
        most = min(largest, count // 2) if largest else 0
        before, after = chance.choice((0, 0, 1, most)), chance.choice((0, 0, 1, 2, most))
        before, after = min(before, most), min(after, most)
        lacking = max(0, step * (count - 1) + 1 - extent - before - after)
        sides.append((before, after, lacking))
    return {
        "size": size,
        "stride": stride,
        "dilation": dilation,
        "rows": sides[0][:2],
        "columns": sides[1][:2],
        "lacking": (sides[0][2], sides[1][2]),
    }


def of_convolutions(chance: random.Random, x: AbstractValue) -> Application:
    """Of `conv2d`: images [N, H, W, C], padded by different amounts on their four sides."""
    n, c, h, w = _image(chance, x, channels_last=True)
    groups = chance.choice([count for count in (1, 1, 1, 2, 3, 4) if c % count == 0])
    outputs = groups * chance.choice((1, 2, 3, 5, 8, 16))
    drawn = _window(chance, (h, w), 0)
    padding = [chance.choice((0, 0, 0, 1, 2)) for _ in range(4)]  # top, left, bottom, right
    lacking = (drawn["lacking"][0] - padding[0] - padding[2], drawn["lacking"][1] - padding[1] - padding[3])
    padding[2], padding[3] = padding[2] + max(0, lacking[0]), padding[3] + max(0, lacking[1])
    dtype = floating(x.dtype)
    return Application(
        (WantedOperand((n, h, w, c), dtype), WantedOperand((outputs, c // groups, *drawn["size"]), dtype)),
        {"stride": drawn["stride"], "padding": tuple(padding), "dilation": drawn["dilation"], "groups": groups},
    )


def of_windows(taps: bool) -> Rule:
    """The rule of windows over images in either layout, with weights for each of their places or without."""

    def rule(chance: random.Random, x: AbstractValue) -> Application | None:
        layout = chance.choice(("NCHW", "NHWC"))
        n, c, h, w = _image(chance, x, layout == "NHWC")
        drawn = _window(chance, (h, w), 2)
        h, w = h + drawn["lacking"][0], w + drawn["lacking"][1]
        dtype = floating(x.dtype)
        attributes = {
            "kernel": drawn["size"],
            "stride": drawn["stride"],
            "padding": (*drawn["rows"], *drawn["columns"]),
            "dilation": drawn["dilation"],
            "layout": layout,
        }
        image = WantedOperand((n, c, h, w) if layout == "NCHW" else (n, h, w, c), dtype)
        if not taps:
            return Application((image,), attributes)
        multiplier = chance.choice((1, 1, 2))
        weights = WantedOperand((c * multiplier, *drawn["size"]), dtype)
        return Application((image, weights), {**attributes, "multiplier": multiplier})

    return rule

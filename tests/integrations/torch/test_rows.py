"""Rows of the mapping say what torch's operators do: what they write down, by the records' references, is what torch
computes. Nothing is compiled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tessera import op
from tessera.integrations.torch.graphs.operators import max_pool_backward
from tessera.integrations.torch.mapping import MAPPING, Unsupported, Wanted
from tessera.ops import oracle

aten = torch.ops.aten


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def whole(*shape: int, below: int = 5, least: int = 0) -> Tensor:
    return torch.randint(least, below, shape, generator=torch.Generator().manual_seed(len(shape)))


X, Y = drawn(3, 4), drawn(3, 4)
M, N = whole(3, 4, below=9, least=-9), whole(3, 4, below=9, least=1)
I = whole(2, 4, below=3)  # noqa: E741 - places
NANS = X.where(X.abs() < 1, math.nan).where(X > -2, -0.0)
VOLUME, IMAGE, ROW = drawn(2, 3, 5, 6, 7), drawn(2, 3, 7, 6), drawn(2, 3, 11)
MASK = X > 0
FAR = torch.tensor([127, 128, -140, 1100, -1100, 9000, -9000])
ENDS = torch.tensor([1, 1, 3], dtype=torch.int32)

ENDS_OF_FLOATS = torch.tensor([0.0, -0.0, 1.0, 2.0, 300.0, math.inf, -math.inf, math.nan], dtype=torch.float64)
GRID, SPACE = drawn(2, 4, 5, 2), drawn(2, 4, 2, 1, 3)
FAR_GRID = torch.stack(
    torch.meshgrid(*[torch.tensor([math.nan, math.inf, -1e7, 0.3]).double()] * 2, indexing="ij"), -1
)[None]
POINTS = torch.cat([torch.linspace(-7.3, 12.4, 60, dtype=torch.float64), ENDS_OF_FLOATS])

WORDS, BEGINS = torch.tensor([3, 0, 4, 4, 1, 3, 3]), torch.tensor([0, 2, 2, 5])
"""Bags of two, none, three and two words."""
PLACES, SIZES = torch.tensor([0, 0, 2, 2, 2, 3, 3]), torch.tensor([2, 0, 3, 2])
SHARES = drawn(7)

LONE = ("max_pool3d_with", "_embedding_bag.default", "_embedding_bag_forward_only")
"""Rows of which the first result alone is compared: the others are not asked for, or torch leaves them undefined."""

CASES: list[tuple[Any, Sequence[Any], dict[str, Any]]] = [
    *(
        (getattr(aten, name).default, [X.sin() * 0.9], {})
        for name in "acos asin atan atanh erfinv sinh tan trunc".split()
    ),
    *((getattr(aten, name).default, [X.abs() + 1], {}) for name in "acosh log2 log10 exp2".split()),
    (aten.atan2.default, [X, Y], {}),
    (aten.hypot.default, [X, Y], {}),
    (aten.copysign.Tensor, [X, Y], {}),
    (aten.copysign.Scalar, [X, -2.0], {}),
    *((target, [NANS, NANS.flip(0)], {}) for target in (aten.fmax.default, aten.fmin.default)),
    (aten.fmax.default, [M, N], {}),
    *((aten.angle.default, [each], {}) for each in (NANS, M, MASK)),
    (aten.ldexp.Tensor, [X, M], {}),
    (aten.ldexp.Tensor, [torch.tensor([[1e-300], [-1e300], [0.0], [math.inf]], dtype=torch.float64), FAR], {}),
    (aten.ldexp.Tensor, [torch.tensor([[1e-38], [3e38], [0.0], [-math.inf]]), FAR], {}),
    (aten.nextafter.default, [X, Y], {}),
    # special functions; torch's trigamma in 32 bits is far from exact beside its poles
    *((aten.lgamma.default, [x], {}) for x in (POINTS.float(), M)),
    *((aten.digamma.default, [x], {}) for x in (POINTS.float(), POINTS, M)),
    *((aten.polygamma.default, [n, POINTS], {}) for n in range(9)),
    *((aten.polygamma.default, [n, x], {}) for n in (0, 2, 3, 4) for x in (POINTS.float(), M)),
    # division with rest, and bits
    *(
        (aten.div.Tensor_mode, [a, b], {"rounding_mode": mode})
        for a, b in ((X, Y), (M, N))
        for mode in ("floor", "trunc")
    ),
    (aten.div.Tensor_mode, [M, -N], {"rounding_mode": "trunc"}),
    (aten.div.Scalar_mode, [M, 4], {"rounding_mode": "trunc"}),
    *(
        (target, [a, b], {})
        for target in (aten.floor_divide.default, aten.remainder.Tensor, aten.fmod.Tensor)
        for a, b in ((X, Y), (M, N), (M, -N))
    ),
    (aten.remainder.Scalar, [M, -4], {}),
    (aten.remainder.Scalar_Tensor, [7, N], {}),
    (aten.fmod.Scalar, [X, 0.75], {}),
    *(
        (getattr(aten, f"bitwise_{name}").Tensor, [M, N], {})
        for name in ("and", "or", "xor", "left_shift", "right_shift")
    ),
    (aten.bitwise_and.Scalar, [M, 6], {}),
    (aten.bitwise_or.Tensor, [MASK, Y > 0], {}),
    (aten.bitwise_not.default, [M], {}),
    (aten.bitwise_not.default, [MASK], {}),
    # order
    (aten.sort.stable, [X], {"stable": True, "dim": 0, "descending": True}),
    (aten.sort.stable, [M], {"stable": True, "dim": -1}),
    (aten.cumprod.default, [X, 1], {}),
    (aten.cumprod.default, [M.bool(), 0], {"dtype": torch.int64}),
    (aten.cumsum.default, [M, 0], {"dtype": torch.int32}),
    (aten.cummax.default, [X, 0], {}),
    (aten.cummin.default, [M, 1], {}),
    (aten.searchsorted.Tensor, [X.sort().values, Y], {"side": "right"}),
    (aten.searchsorted.Tensor, [N[0].sort().values, M], {"out_int32": True}),
    (aten.bucketize.Tensor, [M, N[0].sort().values], {"right": True}),
    (aten.histc.default, [X, 4, -2, 2], {}),
    # places
    (aten.scatter.src, [X, 0, I, Y], {}),
    (aten.scatter.value, [X, 0, I, 7], {}),
    *(
        (aten.scatter_reduce.two, [x, 0, I, y, how], {"include_self": own})
        for x, y in ((X, Y), (M, N))
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    *((aten.scatter.reduce, [X, 0, I, Y], {"reduce": how}) for how in ("add", "multiply")),
    *((aten.scatter.value_reduce, [X, 0, I, 7], {"reduce": how}) for how in ("add", "multiply")),
    (aten.scatter_reduce.two, [NANS, 0, I, Y, "prod"], {}),
    (aten.masked_scatter_backward.default, [X, MASK, [20]], {}),
    (aten.masked_scatter.default, [X, MASK, drawn(20)], {}),
    (aten.index_put.default, [X, [MASK], torch.tensor(2.0, dtype=torch.float64)], {}),
    (aten.index_put.default, [X, [MASK[:, 0]], torch.tensor([2.0], dtype=torch.float64), True], {}),
    (aten.index.Tensor, [VOLUME, [None, I - 1, None, I]], {}),
    *(
        (aten.index_put.default, [VOLUME, [I - 1, None, I[:1]], drawn(2, 4, 3, 6, 1), added], {})
        for added in (False, True)
    ),
    (aten.put.default, [X, I, drawn(2, 4), True], {}),
    *(
        (aten.index_reduce.default, [X, 1, I[0, :3], drawn(3, 3), how], {"include_self": own})
        for how in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    (aten.gather.default, [X.sum(), 0, I[0, 0]], {}),
    # tables
    *(
        (aten.embedding_dense_backward.default, [drawn(2, 4, 3), I, 5, padding, by_frequency], {})
        for padding in (-1, 1)
        for by_frequency in (False, True)
    ),
    *(
        (target, [drawn(5, 3), WORDS[:count].to(dtype), BEGINS.to(dtype), False, mode, False, *rest], {})
        for target in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
        for dtype in (torch.int64, torch.int32)
        for count, mode, *rest in (
            (7, 0),
            (7, 0, SHARES),
            (5, 0, SHARES[:5], True, 3),
            (7, 1),
            (5, 1, None, True),
            (7, 1, None, False, 3),
        )
    ),
    *(
        (aten._embedding_bag_backward.default, [drawn(4, 3), WORDS, BEGINS, PLACES, SIZES, SIZES, 5, *rest], {})
        for rest in (
            (False, 0, False, None),
            (False, 0, False, SHARES, 4),
            (False, 1, False, None),
            (False, 1, False, None, 3),
        )
    ),
    *(
        (
            aten._embedding_bag_per_sample_weights_backward.default,
            [drawn(4, 3), drawn(5, 3), WORDS, BEGINS, PLACES, 0, padding],
            {},
        )
        for padding in (-1, 3)
    ),
    (aten.index_select.default, [ROW, 1, torch.tensor(2)], {}),
    (aten.scatter.src, [X.sum(), 0, torch.tensor(0), Y.sum()], {}),
    (aten.scatter_add.default, [X[0], 0, I[0, 0], Y.sum()], {}),
    (aten.unfold.default, [VOLUME, -2, 3, 2], {}),
    (aten.unfold.default, [X.sum(), 0, 1, 1], {}),
    (aten.narrow_copy.default, [X, 0, -2, 2], {}),
    (aten.diagonal.default, [VOLUME, 1, 4, 2], {}),
    (aten.diagonal_scatter.default, [X, drawn(3), 1], {}),
    (aten.diagonal_scatter.default, [VOLUME, drawn(2, 5, 6, 3), 0, 1, -1], {}),
    # memory
    (aten.as_strided.default, [drawn(2, 5, 1, 1), [2, 5, 1, 1], [5, 1, 5, 5]], {}),
    (aten.as_strided.default, [IMAGE, [6, 3, 2], [1, 42, 126]], {}),
    (aten.as_strided.default, [IMAGE.permute(0, 2, 3, 1), [4, 3], [2, 1], 5], {}),
    (aten.as_strided_scatter.default, [torch.zeros(10), drawn(2, 5).float(), [2, 5], [1, 2], 0], {}),
    (aten.as_strided_scatter.default, [X, drawn(2, 2), [2, 2], [4, 2], 1], {}),
    # padding
    (aten.reflection_pad2d_backward.default, [drawn(2, 3, 10, 9), IMAGE, [1, 2, 0, 3]], {}),
    (aten.replication_pad3d_backward.default, [drawn(2, 3, 6, 6, 10), VOLUME, [1, 2, 0, 0, 1, 0]], {}),
    # convolutions of rows and of volumes
    (aten.convolution.default, [ROW, drawn(4, 3, 3), drawn(4), [2], [1], [2], False, [0], 1], {}),
    (aten.convolution.default, [ROW, drawn(3, 2, 3), drawn(2), [2], [1], [1], True, [1], 1], {}),
    (
        aten.convolution.default,
        [VOLUME, drawn(6, 1, 2, 3, 3), drawn(6), [1, 2, 1], [1, 0, 1], [2, 1, 1], False, [0], 3],
        {},
    ),
    (aten.convolution.default, [VOLUME, drawn(3, 2, 2, 3, 3), None, [2, 1, 1], [1, 0, 1], [1], True, [1, 0, 0], 1], {}),
    (
        aten.convolution_backward.default,
        [drawn(2, 4, 5), ROW, drawn(4, 3, 3), [4], [2], [1], [2], False, [0], 1, [True] * 3],
        {},
    ),
    (
        aten.convolution_backward.default,
        [drawn(2, 2, 3, 2, 5), VOLUME, drawn(2, 3, 3, 3, 3), [2], [2, 2, 1], [1, 0, 0], [1], False, [0], 1, [True] * 3],
        {},
    ),
    (
        aten.convolution_backward.default,
        [
            drawn(2, 2, 9, 6, 7),
            VOLUME,
            drawn(3, 2, 2, 1, 1),
            [2],
            [2, 1, 1],
            [1, 0, 0],
            [1],
            True,
            [1, 0, 0],
            1,
            [True] * 3,
        ],
        {},
    ),
    # pools
    (aten.avg_pool1d.default, [ROW, [3], [2], [1], True, False], {}),
    (aten.avg_pool3d.default, [VOLUME, [2, 3, 3], [2], [1, 0, 1], True, False], {}),
    (aten.avg_pool3d.default, [VOLUME[0], [2], [], [0], False, True, 3], {}),
    (aten.avg_pool3d_backward.default, [drawn(2, 3, 3, 3, 4), VOLUME, [2], [2], [1, 0, 1], False, False, None], {}),
    (aten.avg_pool2d_backward.default, [drawn(2, 3, 4, 3), IMAGE, [2, 2], [2, 2], [0, 0], True, True, None], {}),
    (aten.max_pool3d_with_indices.default, [VOLUME, [2, 3, 3], [2, 1, 2], [1, 0, 1], [1, 2, 1], True], {}),
    *(
        (aten.max_pool2d_with_indices.default, [image, [3, 2], [2, 1], [1, 1], [1, 2], True], {})
        for image in (IMAGE, IMAGE[0].round().long(), torch.full_like(IMAGE, -math.inf))
    ),
    (aten.max_pool2d_with_indices.default, [IMAGE.where(IMAGE < 1, math.nan), [3], [2]], {}),
    (aten.adaptive_max_pool2d.default, [IMAGE, [3, 4]], {}),
    (aten.adaptive_max_pool3d.default, [VOLUME[0], [2, 3, 5]], {}),
    (aten.adaptive_max_pool2d_backward.default, [drawn(2, 3, 3, 4), IMAGE, whole(2, 3, 3, 4, below=42)], {}),
    (aten._adaptive_avg_pool2d.default, [IMAGE, [3, 4]], {}),
    (aten._adaptive_avg_pool3d.default, [VOLUME, [2, 3, 7]], {}),
    (aten._adaptive_avg_pool2d_backward.default, [drawn(2, 3, 3, 4), IMAGE], {}),
    (aten._adaptive_avg_pool3d_backward.default, [drawn(3, 2, 3, 7), VOLUME[0]], {}),
    (max_pool_backward[3], [drawn(2, 3, 3, 4, 4), VOLUME, [2, 3, 3], [2, 2, 2], [1, 1, 1], [1, 1, 1], True], {}),
    (max_pool_backward[2], [drawn(2, 3, 4, 3), IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], True], {}),
    # other sizes
    *(
        (getattr(aten, f"{name}{sides}d{which}").default, [x, size, *rest, *scales[:sides]], {})
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for sides, image, size in ((1, ROW, [7]), (2, IMAGE, [13, 5]), (3, VOLUME, [6, 4, 10]))
        for which, x, rest in (("", image, []), ("_backward", drawn(2, 3, *size), [list(image.shape)]))
        for scales in ((), (1.7, 0.9, 1.3))
    ),
    (aten.upsample_nearest2d.default, [IMAGE, [14, 6]], {}),
    (aten.upsample_nearest2d_backward.default, [drawn(2, 3, 14, 18), [14, 18], [2, 3, 7, 6]], {}),
    *(
        (getattr(aten, f"upsample_{name}_backward").default, [drawn(2, 3, *size), size, list(x.shape), aligned], {})
        for name, x, size in (
            ("linear1d", ROW, [7]),
            ("bilinear2d", IMAGE, [14, 5]),
            ("trilinear3d", VOLUME, [5, 4, 10]),
            ("bicubic2d", IMAGE, [14, 5]),
        )
        for aligned in (False, True)
    ),
    # samples at grids
    *(
        (aten.grid_sampler_2d_backward.default, [drawn(2, 3, 4, 5), IMAGE, GRID, *how, [True, True]], {})
        for how in itertools.product(range(3), range(3), (False, True))
    ),
    (aten.grid_sampler_2d_backward.default, [drawn(2, 3, 4, 5), IMAGE[..., :1], GRID, 0, 2, True, [True, True]], {}),
    *(
        (
            aten.grid_sampler_2d_backward.default,
            [drawn(1, 3, 4, 4), IMAGE[:1], FAR_GRID, mode, 0, True, [True, True]],
            {},
        )
        for mode in range(3)  # beside borders torch itself reads other memory for NaN
    ),
    *(
        (aten.grid_sampler_3d.default, [VOLUME, SPACE, *how], {})
        for how in itertools.product(range(2), range(3), (False, True))
    ),
    *(
        (aten.grid_sampler_3d_backward.default, [drawn(2, 3, 4, 2, 1), VOLUME, SPACE, *how, [True, True]], {})
        for how in itertools.product(range(2), range(3), (False, True))
    ),
    # products and distances
    *(
        (aten.addbmm.default, [drawn(3, 5), drawn(2, 3, 4), drawn(2, 4, 5)], {"beta": beta, "alpha": 0.5})
        for beta in (0, 2)
    ),
    (aten._grouped_mm.default, [drawn(3, 4).float(), drawn(3, 4, 8).float(), ENDS], {}),
    *(
        (aten._cdist_forward.default, [drawn(2, 3, 4), drawn(2, 5, 4), p, None], {})
        for p in (0.0, 1.0, 1.5, 2.0, 3.0, math.inf)
    ),
    *(
        (
            aten._cdist_backward.default,
            [drawn(3, 5), drawn(3, 4), drawn(5, 4), p, torch.cdist(drawn(3, 4), drawn(5, 4), p)],
            {},
        )
        for p in (1.0, 1.5, 2.0, 3.0, math.inf)
    ),
    (aten._pdist_forward.default, [drawn(5, 4), 2.0], {}),
    (aten._pdist_backward.default, [drawn(10), drawn(5, 4), math.inf, torch.pdist(drawn(5, 4), math.inf)], {}),
    (aten._pdist_backward.default, [drawn(10), drawn(5, 4), 3.0, torch.pdist(drawn(5, 4), 3.0)], {}),
    (aten.arange.start_step, [False, True, True], {"dtype": torch.int64}),
]


def _name(case: Any) -> str:
    return str(case).removeprefix("aten.") if isinstance(case, torch._ops.OpOverload) else ""


@pytest.mark.parametrize(("target", "arguments", "options"), CASES, ids=_name)
def test_a_row_is_what_torch_computes(target: Any, arguments: Sequence[Any], options: dict[str, Any]) -> None:
    expected = target(*arguments, **options)
    several = isinstance(expected, tuple | list)
    wanted = list(expected) if several else [expected]
    used = frozenset([0] if any(name in str(target) for name in LONE) else range(len(wanted)))
    strides = arguments[0].stride() if isinstance(arguments[0], Tensor) else None
    shapes, dtypes = tuple(tuple(each.shape) for each in wanted), tuple(each.dtype for each in wanted)
    request = Wanted(shapes, dtypes, used, strides=strides)
    given = tree_map(lambda each: op.tensor(each) if isinstance(each, Tensor) else each, arguments)
    made = MAPPING[target](request, given, options)
    for place, (found, each) in enumerate(zip(made if several else [made], wanted, strict=True)):
        if place not in used:
            continue
        assert (tuple(found.shape), found.dtype.torch) == (tuple(each.shape), each.dtype)
        torch.testing.assert_close(oracle.reference(found).to(each.dtype), each, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_what_a_row_lacks_is_said() -> None:
    whole_numbers = Wanted(((3, 4),), (torch.int64,), frozenset([0]))
    with pytest.raises(Unsupported, match="by 0"):
        MAPPING[aten.floor_divide.default](whole_numbers, [op.tensor(M), 0], {})
    with pytest.raises(Unsupported, match="nothing is left to pad with"):
        MAPPING[aten.replication_pad1d.default](whole_numbers, [op.tensor(ROW), [-11, 2]], {})

"""Attention with functions of scores and masks: right in value, one kernel, and blocks that nobody sees are skipped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import grad, memory_stats, op, settings
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.lazy.evaluation import evaluate
from tessera.ops import oracle

SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.05, 0.01])
DOCUMENTS = torch.tensor([[0] * 20 + [1] * 50, [0] * 33 + [2] * 37], dtype=torch.int32)
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0, -math.inf])

Function = Callable[..., Any]
Case = tuple[Function | None, Function | None]


def cases(library: Any, hold: Callable[[torch.Tensor], Any]) -> dict[str, Case]:
    """score_mod and mask_mod, for torch tensors and for ours."""
    slopes, documents, sinks = hold(SLOPES), hold(DOCUMENTS), hold(SINKS)
    return {
        "soft-cap": (lambda s, b, h, q, k: 5.0 * library.tanh(s / 5.0), None),
        "alibi": (lambda s, b, h, q, k: s + slopes[h] * (k - q), None),
        "window": (None, lambda b, h, q, k: (k <= q) & (q - k < 9 + h)),
        "documents": (None, lambda b, h, q, k: documents[b, q] == documents[b, k]),
        "sinks": (lambda s, b, h, q, k: library.where(k == 0, sinks[h], s), None),
        "bent": (lambda s, b, h, q, k: library.where(s > 0.0, s, s * 0.1), lambda b, h, q, k: k != q),
        "nobody": (None, lambda b, h, q, k: k < q - 1000),
    }


OURS, THEIRS = cases(op, op.tensor), cases(torch, lambda x: x)


def drawn(queries: int, keys: int, shared: int = 2, batch: int = 2, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Q, K and V of six heads of queries."""
    generator = torch.Generator().manual_seed(queries * 31 + keys)
    shapes = (batch, 6, queries, 16), (batch, shared, keys, 16), (batch, shared, keys, 5)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, case: Case) -> torch.Tensor:
    """The definition in float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = q.double() @ k.mT / math.sqrt(q.shape[-1])
    at = [torch.arange(n).view(-1, *(1,) * (3 - place)) for place, n in enumerate(scores.shape)]
    score_mod, mask_mod = case
    scores = scores if score_mod is None else score_mod(scores, *at).double()
    scores = scores if mask_mod is None else torch.where(mask_mod(*at), scores, -math.inf)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    return torch.where(blind, 0.0, torch.softmax(scores, -1)) @ v


def computed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, case: Case) -> torch.Tensor:
    score_mod, mask_mod = case
    return op.flash_attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod).torch()


@pytest.mark.parametrize("name", OURS)
def test_functions_of_scores_and_positions(name: str) -> None:
    for queries, keys in ((37, 70), (1, 70)):
        q, k, v = drawn(queries, keys)
        wanted = expected(q, k, v, THEIRS[name])
        torch.testing.assert_close(computed(q, k, v, OURS[name]).double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 1), (17, 257), (5, 0), (0, 5)])
def test_odd_lengths(queries: int, keys: int) -> None:
    q, k, v = drawn(queries, keys, 6, 1)
    for name in ("soft-cap", "window"):
        wanted = expected(q, k, v, THEIRS[name])
        torch.testing.assert_close(computed(q, k, v, OURS[name]).double(), wanted, atol=1e-5, rtol=1e-5)


def test_narrow_and_wide_dtypes() -> None:
    for dtype, error in ((torch.bfloat16, 2e-2), (torch.float64, 1e-12)):
        q, k, v = drawn(37, 70, dtype=dtype)
        found = computed(q, k, v, OURS["alibi"])
        assert found.dtype is dtype
        torch.testing.assert_close(found.double(), expected(q, k, v, THEIRS["alibi"]), atol=error, rtol=error)


def test_functions_come_before_masks_and_causal() -> None:
    q, k, v = drawn(37, 70)
    bias, visible = torch.randn(37, 70), torch.randn(37, 70) > 0
    square: dict[str, Any] = {"score_mod": lambda s, b, h, i, j: s * s}
    for mask in (bias, visible):
        found = op.flash_attention(q, k, v, **square, causal=True, mask=mask)

        def changed(s: torch.Tensor, *at: torch.Tensor, mask: torch.Tensor = mask) -> torch.Tensor:
            shown = torch.where(mask, s * s, -math.inf) if mask.dtype == torch.bool else s * s + mask
            return torch.where(at[3] <= at[2] + 33, shown, -math.inf)

        torch.testing.assert_close(found.torch().double(), expected(q, k, v, (changed, None)), atol=1e-5, rtol=1e-5)


def test_what_is_no_number_stays_with_its_query() -> None:
    q, k, v = drawn(37, 70)
    q[:, :, 3] = math.nan
    found = computed(q, k, v, OURS["soft-cap"])
    assert found[:, :, 3].isnan().all()
    assert found[:, :, 4:].isfinite().all()
    q[:, :, 3], q[0, 0, 5, 0] = 0.0, math.inf  # a capped score of infinity is the cap
    torch.testing.assert_close(
        computed(q, k, v, OURS["soft-cap"]).double(), expected(q, k, v, THEIRS["soft-cap"]), atol=1e-5, rtol=1e-5
    )


def test_blocks_that_no_query_sees_are_not_computed() -> None:
    """Values of hidden keys that are not finite would show: 0 times NaN is NaN."""
    q, k, v = drawn(600, 600, 1, 1)
    v[:, :, :250] = math.nan
    numbers = torch.arange(600, dtype=torch.int32) // 300
    held = op.tensor(numbers)
    masks = {
        "window": lambda b, h, i, j: (j <= i) & (i - j < 40),
        "documents": lambda b, h, i, j: held[i] == held[j],
    }
    for name, mask in masks.items():
        late = op.flash_attention(q, k, v, mask_mod=mask).torch()[:, :, 425:]
        assert late.isfinite().all(), name
    token = op.flash_attention(q[:, :, -1:], k, v, mask_mod=lambda b, h, i, j: j > 560)  # the few-query kernel
    assert token.torch().isfinite().all()


def test_integers_that_wrap_around_hide_what_they_say() -> None:
    q, k, v = drawn(37, 70)
    large = torch.full((70,), 2**31 - 1, dtype=torch.int32)
    held = op.tensor(large)
    found = computed(q, k, v, (None, lambda b, h, i, j: held[j] + j < 0))
    wanted = expected(q, k, v, (None, lambda b, h, i, j: large[j] + j.int() < 0))
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


def test_integers_without_a_sign_and_of_any_size_hide_what_they_say() -> None:
    """Bounds of blocks are those of the mask's own integers, also where these wrap around."""
    q, k, v = drawn(129, 130, batch=1)
    bytes_, signed = (torch.arange(130) // 64).to(torch.uint8), (torch.arange(130) // -64).to(torch.int8)
    turned = torch.where(torch.arange(130) < 64, 0, 255).to(torch.uint8)
    limits = torch.iinfo(torch.int64)
    ends = torch.where(torch.arange(130) % 2 == 0, limits.min, limits.max)

    def masks(bytes_: Any, signed: Any, turned: Any, ends: Any, narrowed: Function) -> list[Function]:
        return [
            lambda b, h, i, j: bytes_[i] - bytes_[j] > 10,
            lambda b, h, i, j: turned[j] + bytes_[i] > 10,
            lambda b, h, i, j: narrowed(signed[i] + signed[j]) > 10,
            lambda b, h, i, j: ends[i] - ends[j] == 0,
        ]

    held = op.tensor(bytes_), op.tensor(signed), op.tensor(turned), op.tensor(ends)
    ours = masks(*held, lambda x: op.cast(x, "uint8"))
    theirs = masks(bytes_, signed, turned, ends, lambda x: x.to(torch.uint8))
    for mask, other in zip(ours, theirs, strict=True):
        wanted = expected(q, k, v, (None, other))
        torch.testing.assert_close(computed(q, k, v, (None, mask)).double(), wanted, atol=1e-5, rtol=1e-5)


def test_gradients() -> None:
    q, k, v = (x.double() for x in drawn(7, 9, 2, 1))
    bias = torch.randn(6, dtype=torch.float64)
    for score_mod in (
        lambda s, h, i, j, t, bias: 2.0 * t.tanh(s / 2.0) + bias[h] * (j - i),
        lambda s, h, i, j, t, bias: t.where(j <= i, s * bias[h], float("-inf")),
    ):

        def ours(q: Any, k: Any, v: Any, bias: Any, mod: Function = score_mod) -> Any:
            return op.sum(op.flash_attention(q, k, v, score_mod=lambda s, b, h, i, j: mod(s, h, i, j, op, bias)) ** 2)

        leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]

        def changed(s: Any, b: Any, h: Any, i: Any, j: Any, mod: Function = score_mod, held: Any = leaves[3]) -> Any:
            return mod(s, h, i, j, torch, held)

        theirs = expected(leaves[0], leaves[1], leaves[2], (changed, None))
        wanted = torch.autograd.grad((theirs**2).sum(), leaves)
        found = grad.grad(ours, (0, 1, 2, 3))(q, k, v, bias)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.torch(), other, atol=1e-9, rtol=1e-9)


def held_by_functions() -> dict[str, tuple[Function, torch.Tensor]]:
    """Functions of scores with a tensor of theirs, [library, score, batch, head, query, key, tensor]."""
    at = torch.Generator().manual_seed(5)
    return {
        "a cap and slopes": (
            lambda t, s, b, h, i, j, x: t.where(j <= i, x[0] * t.tanh((s + x[h] * (j - i) / 32) / x[0]), -math.inf),
            torch.rand(6, generator=at) + 1,
        ),
        "a bend by erf, of keys": (
            lambda t, s, b, h, i, j, x: (t.special.erf if t is torch else t.erf)(s * 0.5) + x[h, j],
            torch.randn(6, 150, generator=at),
        ),
        "relative positions": (
            lambda t, s, b, h, i, j, x: s + x[h, j - i + 37],
            torch.randn(6, 187, generator=at),
        ),
    }


@pytest.mark.parametrize("name", held_by_functions())
def test_gradients_by_blocks_of_what_functions_hold(name: str) -> None:
    """Of cotangents of numbers, of keys, and of matrices, where heads share keys and blocks have edges."""
    mod, held = held_by_functions()[name]
    (q, k, v), g = drawn(37, 150), torch.randn(2, 6, 37, 5, generator=torch.Generator().manual_seed(1))
    leaves = [x.double().requires_grad_() for x in (q, k, v, held)]
    theirs = expected(leaves[0], leaves[1], leaves[2], (lambda s, *at: mod(torch, s, *at, leaves[3]), None))
    wanted = torch.autograd.grad(theirs, leaves, g.double())

    def ours(q: Any, k: Any, v: Any, held: Any) -> Any:
        return op.sum(op.flash_attention(q, k, v, score_mod=lambda s, *at: mod(op, s, *at, held)) * g)

    for found, other in zip(grad.grad(ours, (0, 1, 2, 3))(q, k, v, held), wanted, strict=True):
        torch.testing.assert_close(found.torch().double(), other, atol=2e-5, rtol=2e-5)


def test_a_cotangent_of_one_query_takes_no_rows_past_it() -> None:
    q, k, v = (x.double() for x in drawn(1, 3))
    held = torch.tensor([0.7], dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in (q, held)]
    theirs = expected(leaves[0], k, v, (lambda s, b, h, i, j: s * leaves[1][i], None))
    (wanted,) = torch.autograd.grad((theirs**2).sum(), leaves[1:])

    def ours(held: Any) -> Any:
        return op.sum(op.flash_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * held[i]) ** 2)

    torch.testing.assert_close(grad.grad(ours)(held).torch(), wanted, atol=1e-12, rtol=1e-12)


def test_one_kernel_forms_all_cotangents() -> None:
    q, k, v = (op.tensor(x) for x in drawn(64, 64))
    slopes, g = op.tensor(SLOPES), op.tensor(torch.ones(2, 6, 64, 5))
    result = op.flash_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i))
    found = grad.vjp(result, [q, k, v, slopes], g)
    report = op.concat([x.reshape(-1) for x in (result, *found)]).inspect("fusion")
    made = [line.split(": ")[1] for line in report.splitlines() if " -> " not in line]
    assert "scored_attention . scored_attention_logarithms" in made
    assert "attention_dq . attention_dk . attention_dv . attention_dx" in made


def test_the_gradient_skips_blocks_that_nobody_sees_and_makes_no_matrix_of_scores() -> None:
    """Values and keys that are not finite would show: 0 times NaN is NaN."""
    length = 1024
    q, k, v, g = (torch.randn(1, 1, length, 8, generator=torch.Generator().manual_seed(n)) for n in range(4))
    k[:, :, :400] = v[:, :, :400] = math.nan

    def ours(q: torch.Tensor) -> list[torch.Tensor]:
        operands = [op.tensor(x) for x in (q, k, v)]
        result = op.flash_attention(*operands, mask_mod=lambda b, h, i, j: (j <= i) & (i - j < 40))
        found = grad.vjp(result, operands, op.tensor(g))
        evaluate([result, *found])
        return [x.torch() for x in found]

    d_q, d_k, d_v = ours(q)
    assert d_q[:, :, 640:].isfinite().all()
    assert d_k[:, :, 640:].isfinite().all()
    assert d_v[:, :, 640:].isfinite().all()
    with settings.override(memory_limit_bytes=memory_stats()["reserved_bytes"] + length * length):
        ours(q + 1)


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, changed: Function) -> Any:
    """Attention as products and a softmax, with something in between."""
    scores = op.matmul(q, op.swapaxes(op.tensor(k), -1, -2)) * 0.25
    rows, columns = op.reshape(op.arange(q.shape[-2]), (-1, 1)), op.arange(k.shape[-2])
    return op.matmul(op.softmax(changed(scores, rows, columns), -1), v)


@pytest.mark.parametrize(
    "changed",
    [
        lambda s, i, j: op.tanh(s / 5.0) * 5.0,
        lambda s, i, j: op.where(i >= j, 5.0 * op.tanh(s * 0.2), float("-inf")),
        lambda s, i, j: op.where(op.logical_and(j <= i, i - j < 9), s, float("-inf")),
        lambda s, i, j: op.where(s > 0.0, s, s * 0.1) + op.tensor(SLOPES).reshape(6, 1, 1) * (j - i),
    ],
)
def test_what_is_written_out_is_one_kernel(changed: Function) -> None:
    q, k, v = drawn(37, 70, 6)
    result = written_out(q, k, v, changed)
    kernels = [line for line in result.inspect("fusion").splitlines() if " -> " not in line]
    assert [line.split(": ")[1].split(";")[0] for line in kernels] == ["scored_attention"]
    torch.testing.assert_close(result.torch().double(), oracle.reference(result), atol=1e-5, rtol=1e-5)


def test_a_score_that_is_used_elsewhere_is_made() -> None:
    q, k, v = drawn(37, 70, 6)
    scores = op.tanh(op.matmul(q, op.swapaxes(op.tensor(k), -1, -2)))
    both = op.matmul(op.softmax(scores, -1), v), op.sum(scores)
    assert "scored_attention" not in both[0].inspect("fusion") or both[1].torch().isfinite()
    wanted = [oracle.reference(each) for each in both]
    for each, value in zip(both, wanted, strict=True):
        torch.testing.assert_close(each.torch().double(), value, atol=1e-3, rtol=1e-4)


def test_mistakes() -> None:
    q, k, v = drawn(3, 4)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"score_mod": lambda s, b, h, i, j: 1.0}, ArgumentError, "score_mod gave 1.0"),
        ({"score_mod": lambda s, b, h, i, j: op.softmax(s)}, ArgumentError, "depends on other scores"),
        ({"score_mod": lambda s, b, h, i, j: op.sum(s, -1, True)}, ArgumentError, "depends on other scores"),
        ({"score_mod": lambda s, b, h, i, j: s + torch.ones(7, 1)}, ShapeMismatchError, "broadcast|shape"),
        ({"mask_mod": lambda b, h, i, j: j - i}, ArgumentError, "mask_mod gave"),
        ({"mask_mod": lambda b, h, i, j: None}, ArgumentError, "mask_mod gave None"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            op.flash_attention(q, k, v, **options)


def test_rows_that_see_nothing_have_no_gradient_of_any_order() -> None:
    q, k, v = (x.double() for x in drawn(5, 6, 2, 1))

    def ours(q: Any) -> Any:
        return op.sum(op.flash_attention(q, k, v, mask_mod=lambda b, h, i, j: i > 2) ** 2)

    first = grad.grad(ours)
    second = grad.grad(lambda q: op.sum(first(q) ** 2))(q).torch()
    assert (first(q).torch()[..., :3, :] == 0).all()
    assert (second[..., :3, :] == 0).all()
    assert second.isfinite().all()
    assert (second[..., 3:, :] != 0).all()

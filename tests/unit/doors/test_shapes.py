"""Shapes: parts of tensors, tensors out of parts and out of nothing; where results are written without a copy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import grad, op, profile
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, ShapeMismatchError
from tests.property.checking import evaluated
from tests.property.operands import LAYOUTS, Shape, filled, laid_out, shapes

SLICES = st.builds(
    slice,
    st.one_of(st.none(), st.integers(-9, 9)),
    st.one_of(st.none(), st.integers(-9, 9)),
    st.one_of(st.none(), st.integers(1, 3), st.integers(-3, -1)),
)


@given(data=st.data())
@settings(max_examples=15)
def test_slices_of_any_steps(data: st.DataObject) -> None:
    shape = data.draw(shapes(data.draw(st.integers(1, 3))))
    x = laid_out(torch.randn(shape), data.draw(st.sampled_from(LAYOUTS)))
    index = tuple(data.draw(SLICES) for _ in shape)
    expected = torch.from_numpy(x.numpy()[index].copy())
    assert torch.equal(op.tensor(x)[index].torch(), expected)
    assert torch.equal(evaluated((op.tensor(x) * 2)[index] + 1), expected * 2 + 1)


def test_what_is_walked_backwards_feeds_every_family() -> None:
    x, w = torch.randn(6, 8), torch.randn(8, 5)
    back = op.flip(x, 1)
    torch.testing.assert_close((back @ w).torch(), x.flip(1) @ w)
    torch.testing.assert_close(back.softmax(-1).torch(), x.flip(1).softmax(-1))
    torch.testing.assert_close(op.flip(x).sum(0).torch(), x.flip(0, 1).sum(0))
    torch.testing.assert_close(op.cumsum(back, 1).torch(), x.flip(1).cumsum(1))
    there = op.flip(op.tensor(x, device="interpreter"), 1)
    torch.testing.assert_close((there + 1).torch(), x.flip(1) + 1)
    torch.testing.assert_close(op.flip(torch.tensor(3.0)).torch(), torch.tensor(3.0))


def test_a_step_of_zero_is_refused() -> None:
    with pytest.raises(ArgumentError, match="step 0"):
        op.tensor(torch.ones(3))[::0]


# -- split, stack, squeeze --------------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=20)
def test_split_and_stack(data: st.DataObject) -> None:
    shape = data.draw(shapes(data.draw(st.integers(1, 3))))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = torch.randn(shape)
    size = data.draw(st.integers(1, 40))
    for ours, theirs in zip(op.split(op.tensor(x) * 1, size, axis), torch.split(x, size, axis), strict=True):
        assert torch.equal(ours.torch(), theirs)
    place = data.draw(st.integers(-len(shape) - 1, len(shape)))
    assert torch.equal(evaluated(op.stack([x, op.tensor(x) * 2, x], place)), torch.stack([x, x * 2, x], place))


def test_split_by_sizes_and_what_is_refused() -> None:
    x = torch.arange(12).reshape(2, 6)
    first, none, rest = op.split(x, [2, 0, 4], 1)
    assert torch.equal(first.torch(), x[:, :2])
    assert none.shape == (2, 0)
    assert rest.strides == (6, 1)  # a view
    with pytest.raises(ShapeMismatchError, match=r"sizes \[2, 3\]"):
        op.split(x, [2, 3], 1)
    with pytest.raises(ArgumentError, match="parts of 0"):
        op.split(x, 0)
    with pytest.raises(ShapeMismatchError, match="without dimensions"):
        op.split(torch.tensor(1.0), 1)
    with pytest.raises(ShapeMismatchError, match="stack of tensors of shapes"):
        op.stack([torch.ones(2), torch.ones(3)])
    with pytest.raises(ArgumentError, match="no tensors"):
        op.stack([])


def test_squeeze_unsqueeze_and_swapaxes() -> None:
    x = torch.randn(1, 3, 1, 4)
    for axis in (None, 0, 1, (0, 2), -2):
        expected = x.squeeze() if axis is None else x.squeeze(axis)
        assert torch.equal(op.squeeze(op.tensor(x) * 1, axis).torch(), expected)
    for axis in (0, 2, -1):
        assert op.unsqueeze(x, axis).shape == tuple(x.unsqueeze(axis).shape)
    assert torch.equal(op.swapaxes(x, 1, -1).torch(), x.swapaxes(1, -1))
    with pytest.raises(ArgumentError, match="axis 6"):
        op.unsqueeze(x, 6)


# -- what is joined is written in place -------------------------------------------------------------------------------


def test_kernels_write_into_the_tensor_that_they_are_joined_to() -> None:
    shapes_of = [(20, 33), (20, 16)]
    launches = launches_of_operator(lambda a, b: op.concat([op.exp(a), op.tanh(b)], 1), shapes_of, "fp32")
    assert [launch.call.item.name for launch in launches] == ["exp_0", "tanh_1"]
    launches = launches_of_operator(lambda a, b: op.stack([a + b, a @ b.T], 0), [(20, 20)] * 2, "fp32")
    assert len(launches) == 2
    launches = launches_of_operator(lambda a: op.pad(op.exp(a), (1, 1)), [(20, 33)], "fp32")
    assert len(launches) == 4  # exp, the number, and two borders


def test_joined_parts_that_are_used_again_are_right() -> None:
    a, b = torch.randn(7, 33), torch.randn(7, 5)
    first, second = op.exp(op.tensor(a)), op.tensor(b) @ torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    w = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    inner = op.concat([first, second], 1)
    outer = op.concat([inner, inner, first], 1)
    expected = torch.cat([a.exp(), b @ w], 1)
    torch.testing.assert_close(evaluated(outer), torch.cat([expected, expected, a.exp()], 1))
    nested = op.concat([op.concat([op.exp(op.tensor(a)), op.tensor(b) * 2], 1), op.tensor(a) + 1], 1)
    torch.testing.assert_close(evaluated(nested), torch.cat([a.exp(), b * 2, a + 1], 1))
    normal = op.concat([op.softmax(op.tensor(a) * 1), op.tensor(b).sum(1, keepdims=True)], 1)
    torch.testing.assert_close(evaluated(normal), torch.cat([a.softmax(1), b.sum(1, keepdim=True)], 1))


# -- pad --------------------------------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=25)
def test_pads_are_torchs(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(("constant", "reflect", "replicate", "circular")))
    axes = data.draw(st.integers(1, 3))
    lead: Shape = data.draw(st.sampled_from(((2,), (2, 3), (1, 2))))[: 4 - axes + 1]
    shape = (*lead, *[data.draw(st.integers(2, 9)) for _ in range(axes)])
    most = {"constant": 5, "reflect": 1, "replicate": 5, "circular": 2}[mode]
    widths = tuple(data.draw(st.integers(-1, most)) for _ in range(2 * axes))
    widths = tuple(max(width, 0) for width in widths) if mode == "reflect" or 2 in shape else widths
    x = torch.randn(shape, dtype=data.draw(st.sampled_from((torch.float32, torch.float64))))
    rank_for_torch = x if x.ndim >= axes + 1 else x[None]
    expected = torch.nn.functional.pad(rank_for_torch, widths, mode).reshape(
        [extent + a + b for extent, a, b in zip(shape, *_by_axis(widths, len(shape)), strict=True)]
    )
    assert torch.equal(evaluated(op.pad(op.tensor(x) * 1, widths, mode)), expected)
    assert torch.equal(op.pad(x, widths, mode).torch(), expected)


def _by_axis(widths: tuple[int, ...], rank: int) -> tuple[list[int], list[int]]:
    before, after = (list(reversed(widths[side::2])) for side in (0, 1))
    return [0] * (rank - len(before)) + before, [0] * (rank - len(after)) + after


def test_a_constant_of_any_value_and_dtype() -> None:
    x = torch.randint(0, 9, (3, 4))
    for tensor, value in ((x, -7), (x.float(), float("inf")), (x > 4, True), (x.bfloat16(), 0.5)):
        expected = torch.nn.functional.pad(tensor, (1, 2, 0, 1), value=value)
        assert torch.equal(op.pad(tensor, (1, 2, 0, 1), value=value).torch(), expected)
    assert torch.equal(op.pad(torch.ones(0, 3), (0, 0, 2, 1), value=5.0).torch(), torch.full((3, 3), 5.0))


def test_gradients_of_pads_are_torchs() -> None:
    x, weight = torch.randn(1, 3, 4, dtype=torch.float64), torch.randn(1, 6, 8, dtype=torch.float64)
    for mode in ("constant", "reflect", "replicate", "circular"):
        ours = grad.grad(lambda a, mode=mode: (op.pad(a, (2, 2, 1, 2), mode) * weight).sum())(x)
        leaf = x.clone().requires_grad_()
        (torch.nn.functional.pad(leaf, (2, 2, 1, 2), mode) * weight).sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(ours.torch(), leaf.grad)


def test_pad_on_the_interpreter() -> None:
    x = torch.randn(1, 3, 5)
    for mode in ("constant", "reflect", "replicate", "circular"):
        there = op.pad(op.tensor(x, device="interpreter") * 1, (2, 1, 1, 1), mode)
        assert torch.equal(there.torch(), torch.nn.functional.pad(x, (2, 1, 1, 1), mode))


def test_pads_that_are_refused() -> None:
    x = torch.ones(2, 3)
    for widths, mode, message in (
        ((1,), "constant", "1 widths"),
        ((1,) * 6, "constant", "6 widths"),
        ((3, 0), "reflect", "widths 3 and 0 along axis 1"),
        ((0, 4), "circular", "at most 3|widths 0 and 4"),
        ((-2, -2), "constant", "take more than the 3"),
        ((1, 1), "edge", "mode='edge'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            op.pad(x, widths, mode)


# -- out of nothing ---------------------------------------------------------------------------------------------------


def test_fills() -> None:
    assert torch.equal(op.zeros((2, 3)).torch(), torch.zeros(2, 3))
    assert torch.equal(op.ones((2, 0), "int32").torch(), torch.ones(2, 0, dtype=torch.int32))
    for value in (True, 7, 0.5):
        assert op.full((3,), value).torch().dtype == torch.full((3,), value).dtype
    for value in (0, 1.0, 2.5):  # literals and arguments of the program
        assert op.full((), value, "fp32").torch().item() == value
    made = op.full((2, 3), 2.0).torch()
    made[0, 0] = 9.0  # a tensor of its own, with memory for each element
    assert made.tolist() == [[9.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    launches = launches_of_operator(lambda a: op.exp(a) + op.ones((5, 3)), [(5, 3)], "fp32")
    assert len(launches) == 1
    with pytest.raises(ArgumentError, match="negative"):
        op.zeros((2, -1))
    with pytest.raises(ArgumentError, match="value='a'"):
        op.full((2,), "a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "numbers",
    [(5,), (2, 9), (9, 2, -3), (0, 1, 0.1), (1.5, 9), (0,), (5, 5), (3, 1), (2**40, 2**40 + 3), (0, -1, -0.25)],
)
def test_ranges_are_torchs(numbers: tuple[float, ...]) -> None:
    # torch refuses ranges that lead away from their end.
    expected = torch.arange(*(numbers if numbers[:2] != (3, 1) else (0,)))
    ours = op.arange(*numbers).torch()  # type: ignore[arg-type]  # at most three
    assert ours.dtype == expected.dtype
    torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9)


def test_ranges_that_are_refused() -> None:
    for numbers in ((0, 1, 0), (0, float("inf")), (True,)):
        with pytest.raises(ArgumentError, match="arange of"):
            op.arange(*numbers)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.bfloat16])
def test_every_dtype_moves(dtype: torch.dtype) -> None:
    x = filled((3, 5), op.tensor(torch.zeros(1, dtype=dtype)).dtype, "ordinary", 3)
    assert torch.equal(op.flip(x, 0).torch(), x.flip(0))
    assert torch.equal(op.stack([x, x], 1).torch(), torch.stack([x, x], 1))


def test_kernels_that_compute_nothing_have_names_and_bytes_in_profiles() -> None:
    """The number that padding consists of, or a whole tensor, is written by a kernel without an operator."""
    x = torch.randn(30, 50)
    for made in (op.pad(x, (1, 2)), op.full((30, 3), 0.5)):
        with profile.session() as session:
            made.eval()
        (fill,) = (record for record in session.records() if record.operator == "fill")
        assert (fill.flops, fill.bytes, fill.dtype) == (0, 4, "fp32")

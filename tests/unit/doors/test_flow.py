"""Loops and branches: what they compute, that they are compiled once for all lengths, and gradients of any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import extend, grad, op
from tessera.doors.flow import bodies, controls
from tessera.errors import ArgumentError, DTypeError, FrozenRandomError, ShapeMismatchError, ValueControlFlowError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_node

SOURCE = torch.Generator().manual_seed(11)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=SOURCE, dtype=torch.float64)


def cell(carry: Any, x: Any) -> tuple[Any, Any]:
    """A step that reads both."""
    following = op.tanh(carry * 0.9 + x)
    return following, following * carry


def torch_scan(init: torch.Tensor, xs: torch.Tensor, weight: torch.Tensor | None = None) -> tuple[torch.Tensor, Any]:
    """`cell`, or that behind a product with a weight, by torch."""
    carry, results = init, []
    for x in xs:
        before = carry if weight is None else weight @ carry
        following = torch.tanh(before * 0.9 + x)
        results.append(following * before)
        carry = following
    return carry, torch.stack(results) if results else torch.empty(0, *init.shape, dtype=init.dtype)


# -- scan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_scan_is_its_loop(length: int, dtype: torch.dtype) -> None:
    init, xs = normal(5).to(dtype), normal(5, length).to(dtype).T  # not contiguous
    last, results = op.scan(cell, init, xs)
    expected = torch_scan(init, xs)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for ours, theirs in zip((last, results), expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.torch(), theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(extend.reference(results).to(dtype), expected[1], rtol=tolerance, atol=tolerance)


def test_backwards_and_without_slices() -> None:
    xs = normal(4, 3)
    last, sums = op.scan(lambda carry, x: (carry + x, carry), torch.zeros(3, dtype=torch.float64), xs, reverse=True)
    torch.testing.assert_close(last.torch(), xs.sum(0))
    torch.testing.assert_close(sums.torch(), xs.flip(0).cumsum(0).flip(0) - xs)
    count, numbers = op.scan(lambda n, _: (n + 1, n * n), torch.tensor(0), length=5)
    assert (count.item(), numbers.tolist()) == (5, [0, 1, 4, 9, 16])


@pytest.mark.parametrize(
    ("changed", "hint"), [(lambda x: op.complex(x, x), "op.real"), (lambda x: x.to("fp8_e4m3"), "bf16")]
)
def test_results_that_a_body_may_not_give_are_refused(changed: Callable[[Any], Any], hint: str) -> None:
    with pytest.raises(DTypeError, match=rf"(?s)gives.*hint: .*{hint}"):
        op.map(changed, torch.ones(2, 3))


def test_operands_come_into_the_layout_that_a_body_knows_whatever_extents_are_one() -> None:
    x = normal(4, 1, 6)
    for wanted in (normal(4, 1, 12)[..., ::2], normal(1, 4, 6).transpose(0, 1), normal(6).expand(4, 1, 6)):
        source = x if wanted.stride()[0] else x[:1].expand(4, 1, 6)
        layout = as_node(wanted).structure
        made = bodies.fitted(layout, source.contiguous())
        assert torch.equal(made, source)
        assert as_node(made).structure is layout


def test_trees_and_mixed_dtypes() -> None:
    init = {"sum": torch.zeros(3), "count": torch.tensor(0), "seen": torch.tensor([False] * 3)}

    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        a, b = x
        new = {"sum": carry["sum"] + a * b, "count": carry["count"] + 1, "seen": carry["seen"] | (a > 1)}
        return new, (carry["count"], [a - b])

    a, b = torch.randn(6, 3, generator=SOURCE), torch.randn(6, 3, generator=SOURCE).half().float()
    last, (counts, [differences]) = op.scan(body, init, (a, b))
    torch.testing.assert_close(last["sum"].torch(), (a * b).sum(0))
    assert last["count"].item() == 6
    assert last["seen"].tolist() == (a > 1).any(0).tolist()
    assert counts.tolist() == list(range(6))
    torch.testing.assert_close(differences.torch(), a - b)


def test_a_result_that_is_an_operand_a_number_or_a_view() -> None:
    xs = normal(3, 2, 4)
    last, (same, number, turned) = op.scan(lambda c, x: (c, (x, 1.5, x.T)), normal(2), xs)
    assert last.shape == (2,)
    assert torch.equal(same.torch(), xs)
    assert number.tolist() == [1.5] * 3
    assert torch.equal(turned.torch(), xs.transpose(1, 2))


def test_one_program_serves_all_lengths_and_every_call() -> None:
    made = [op.scan(cell, normal(5), normal(length, 5))[1] for length in (3, 8, 3)]
    nodes = [each.structure for each in made]
    assert nodes[0] is nodes[2]
    known = {key for key in controls._known if key[0] is controls.Scan}
    op.scan(lambda carry, x: cell(carry, x), normal(5), normal(9, 5))[1].eval()  # noqa: PLW0108 - another function
    assert {key for key in controls._known if key[0] is controls.Scan} == known


def test_both_results_are_one_run() -> None:
    runs = []
    run = controls.Scan.run
    last, results = op.scan(cell, normal(5), normal(4, 5))

    def counted(self: Any, *arguments: Any) -> None:
        runs.append(1)
        run(self, *arguments)

    patch = pytest.MonkeyPatch()
    patch.setattr(controls.Scan, "run", counted)
    with patch.context():
        last.eval()
        results.eval()
    patch.undo()
    assert len(runs) == 1


def test_in_a_kernel_and_nested() -> None:
    @op.kernel
    def table(x: Tensor, w: Tensor) -> Any:
        def outer(carry: Any, row: Any) -> tuple[Any, Any]:
            inner, _ = op.scan(lambda c, y: (c * 0.5 + y * w, None), carry, row)
            return inner, inner.sum()

        return op.scan(outer, w * 0.0, x * 2.0)[1]

    for rows in (2, 5):
        x, w = normal(rows, 3, 4), normal(4)
        carry, expected = w * 0, []
        for row in x * 2:
            for y in row:
                carry = carry * 0.5 + y * w
            expected.append(carry.sum())
        torch.testing.assert_close(table(x, w).torch(), torch.stack(expected))  # type: ignore[arg-type]


def _finite_difference(function: Callable[..., Any], values: list[torch.Tensor], number: int) -> torch.Tensor:
    step, found = 1e-6, torch.zeros_like(values[number])
    for place in range(values[number].numel()):
        sides = []
        for sign in (1, -1):
            moved = [each.clone() for each in values]
            moved[number].view(-1)[place] += sign * step
            sides.append(float(function(*moved)))
        found.view(-1)[place] = (sides[0] - sides[1]) / (2 * step)
    return found


def _loss(init: Any, xs: Any, weight: Any) -> Any:
    """Of what is carried, what is stacked, and a weight that the body reads from outside."""
    last, results = op.scan(lambda c, x: cell(op.matmul(weight, c), x), init, xs)
    return (last * last).sum() + (results * results).sum()


def test_gradients_are_finite_differences() -> None:
    values = [normal(3), normal(4, 3), normal(3, 3) * 0.5]
    found = grad.grad(_loss, (0, 1, 2))(*values)
    for number, gradient in enumerate(found):
        expected = _finite_difference(_loss, values, number)
        torch.testing.assert_close(gradient.torch(), expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients() -> None:
    values = [normal(3), normal(4, 3)]

    def loss(init: Any, xs: Any) -> Any:
        return (op.scan(cell, init, xs, reverse=True)[1] ** 2).sum()

    def slope(init: Any, xs: Any) -> Any:
        return (grad.grad(loss, 1)(init, xs) ** 2).sum()

    found = grad.grad(slope, 0)(*values)
    torch.testing.assert_close(found.torch(), _finite_difference(slope, values, 0), rtol=1e-4, atol=1e-5)


# -- while_loop, cond and map -----------------------------------------------------------------------------------------


def _newton(target: Any, begin: Any) -> Any:
    """The root of a number by Newton's steps."""
    return op.while_loop(lambda x: op.abs(x * x - target) > 1e-9, lambda x: (x + target / x) * 0.5, begin)


def test_a_while_loop_ends_when_its_condition_says_so() -> None:
    for number in (2.0, 9.0, 1e6):
        target = torch.tensor(number, dtype=torch.float64)
        assert float(_newton(target, torch.tensor(1.0, dtype=torch.float64))) == pytest.approx(number**0.5, rel=1e-9)
    none = op.while_loop(lambda x: x < 0, lambda x: x - 1, torch.tensor(3))
    assert none.item() == 3
    count, total = op.while_loop(
        lambda v: v[0] < 10, lambda v: (v[0] + 1, v[1] + v[0]), (torch.tensor(0), torch.tensor(0))
    )
    assert (count.item(), total.item()) == (10, 45)


def test_its_gradient_is_that_of_its_steps() -> None:
    values = [torch.tensor(7.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)]
    for number in range(2):
        found = grad.grad(_newton, number)(*values)
        torch.testing.assert_close(found.torch(), _finite_difference(_newton, values, number), rtol=1e-5, atol=1e-7)

    @op.kernel
    def root(target: Tensor, begin: Tensor) -> Tensor:
        return _newton(target, begin)  # type: ignore[no-any-return]

    assert float(root(*values)) == pytest.approx(7.0**0.5)  # type: ignore[arg-type]

    @op.kernel
    def slope(target: Tensor) -> Tensor:
        return grad.vjp(_newton(target, values[1]), [target])[0]

    with pytest.raises(ValueControlFlowError):
        slope(values[0])  # type: ignore[arg-type]


def test_one_branch_is_run() -> None:
    x, w = normal(4), normal(4)

    def choose(flag: Any, x: Any, w: Any) -> Any:
        return op.cond(flag, lambda x: op.sin(x) * w, lambda x: x * x, x)

    for flag, expected in ((True, x.sin() * w), (False, x * x)):
        condition = torch.tensor(flag)
        torch.testing.assert_close(choose(condition, x, w).torch(), expected)
        found = grad.grad(lambda a, b, flag=condition: choose(flag, a, b).sum(), (0, 1))(x, w)
        slopes = (x.cos() * w, x.sin()) if flag else (2 * x, torch.zeros(4, dtype=torch.float64))
        for ours, theirs in zip(found, slopes, strict=True):
            torch.testing.assert_close(ours.torch(), theirs)

    @op.kernel
    def kernel(x: Tensor) -> Tensor:
        return op.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, x)  # type: ignore[no-any-return]

    for sample in (x.abs(), -x.abs()):
        torch.testing.assert_close(kernel(sample).torch(), sample * 2 if sample.sum() > 0 else -sample)  # type: ignore[arg-type]


def test_a_map_is_stacked() -> None:
    x, w = normal(5, 3, 3), normal(3)
    found = op.map(lambda a: op.matmul(a, w).softmax(), x)
    torch.testing.assert_close(found.torch(), (x @ w).softmax(-1))
    slope = grad.grad(lambda a: (op.map(lambda row: op.exp(row), a) ** 2).sum())(w)  # noqa: PLW0108
    torch.testing.assert_close(slope.torch(), 2 * (2 * w).exp())


# -- what is refused --------------------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    init, xs = torch.zeros(3), torch.zeros(4, 3)
    with pytest.raises(ArgumentError, match=r"value 0 is \(3,\) fp64, and has to be \(3,\) fp32"):
        op.scan(lambda c, x: (c.double(), None), init, xs)
    with pytest.raises(ArgumentError, match="gives a pair"):
        op.scan(lambda c, x: c, init, xs)
    with pytest.raises(ArgumentError, match="of the form"):
        op.scan(lambda c, x: ((c, c), None), init, xs)
    with pytest.raises(ShapeMismatchError, match="lengths"):
        op.scan(lambda c, x: (c, None), init, (xs, torch.zeros(5)))
    with pytest.raises(ShapeMismatchError, match="lengths"):
        op.scan(lambda c, x: (c, None), init)
    with pytest.raises(ArgumentError, match="the condition of a while_loop"):
        op.while_loop(lambda c: c > 0, lambda c: c, init)
    with pytest.raises(ArgumentError, match="second branch"):
        op.cond(torch.tensor(True), lambda x: x, lambda x: x.sum(), init)
    with pytest.raises(ArgumentError, match="the predicate"):
        op.cond(init, lambda x: x, lambda x: x, init)
    with pytest.raises(FrozenRandomError):
        op.scan(lambda c, x: (c + torch.randn(3), None), init, xs)
    with pytest.raises(ValueControlFlowError):
        op.scan(lambda c, x: (c if x.sum() > 0 else -c, None), init, xs)


def _attended(y: torch.Tensor) -> torch.Tensor:
    hidden = torch.ones(y.shape[-2], y.shape[-2], dtype=torch.bool).triu(1)
    return torch.softmax((y @ y.mT * y.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf), -1) @ y


@pytest.mark.parametrize("looped", [False, True])
def test_gradients_of_gradients_take_the_tensors_that_rules_make(looped: bool) -> None:
    x, weights = normal(1, 1, 3, 2), normal(1, 1, 3, 2)

    def ours(y: Tensor) -> Tensor:
        def attended(z: Tensor) -> Tensor:
            return op.flash_attention(z, z, z, causal=True)

        if looped:
            return op.sum(op.scan(lambda carry, _: (attended(carry) + carry, None), y, None, length=2)[0])
        return op.sum(op.cond(op.tensor(torch.tensor(True)), attended, lambda z: z * 2, y))

    def theirs(y: torch.Tensor) -> torch.Tensor:
        if not looped:
            return _attended(y).sum()
        for _ in range(2):
            y = _attended(y) + y
        return y.sum()

    slope = grad.grad(ours)
    found = grad.grad(lambda y: op.sum(slope(y) * weights))(op.tensor(x))
    given = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(theirs(given), given, create_graph=True)
    (wanted,) = torch.autograd.grad((first * weights).sum(), given)
    torch.testing.assert_close(found.torch(), wanted)

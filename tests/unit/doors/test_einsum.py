"""einsum: drawn equations against torch, the kernels that it comes to, the order of products, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import grad, op
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.ops.contraction.einsum_notation import EXHAUSTIVE, contraction_order
from tests.property.operands import LAYOUTS, laid_out
from tests.whole import examples

EXTENTS = {"a": 2, "b": 3, "c": 1, "i": 5, "j": 7, "k": 4}


def equations() -> st.SearchStrategy[str]:
    """Equations of one to three operands; labels may repeat within a term and need not reach the result."""
    term = st.text(alphabet="".join(EXTENTS), min_size=0, max_size=4)

    def complete(terms: list[str]) -> st.SearchStrategy[str]:
        labels = sorted(set("".join(terms)))
        results = st.lists(st.sampled_from(labels), unique=True, max_size=4) if labels else st.just([])
        explicit = results.map(lambda chosen: f"{','.join(terms)}->{''.join(chosen)}")
        return st.one_of(explicit, explicit, st.just(",".join(terms)))

    return st.lists(term, min_size=1, max_size=3).flatmap(complete)


@given(equation=equations(), layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 1 << 16))
@settings(max_examples=examples(13, 25))
def test_drawn_equations_are_torchs(equation: str, layout: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    terms = equation.partition("->")[0].split(",")
    operands = [
        laid_out(torch.randn([EXTENTS[x] for x in term], generator=generator, dtype=torch.float64), layout)  # type: ignore[arg-type]
        for term in terms
    ]
    expected = torch.einsum(equation, *operands)
    result = op.einsum(equation, *operands)
    assert result.shape == expected.shape
    torch.testing.assert_close(result.torch(), expected)


ELLIPSES = {
    "...ij,...jk->...ik": ((2, 3, 4, 5), (3, 5, 6)),
    "...i->...": ((2, 3, 4),),
    "i...,i...": ((3, 1, 4), (3, 2, 1)),
    "b...,b->...b": ((2, 3, 4), (2,)),
    "...,...": ((2, 1), (3,)),
    "ij...->ji...": ((2, 3, 4),),
}


@pytest.mark.parametrize("equation", sorted(ELLIPSES))
def test_ellipses_broadcast(equation: str) -> None:
    operands = [torch.randn(shape, dtype=torch.float64) for shape in ELLIPSES[equation]]
    torch.testing.assert_close(op.einsum(equation, *operands).torch(), torch.einsum(equation, *operands))


def test_extents_of_one_broadcast() -> None:
    x, y = torch.randn(4, 1, 3), torch.randn(1, 5, 3)
    torch.testing.assert_close(op.einsum("abc,abc->ab", x, y).torch(), torch.einsum("abc,abc->ab", x, y))


def test_empty_sums_are_zero() -> None:
    assert torch.equal(op.einsum("ij,jk->ik", torch.ones(2, 0), torch.ones(0, 3)).torch(), torch.zeros(2, 3))
    assert op.einsum("ij,jk->ik", torch.ones(0, 2), torch.ones(2, 3)).torch().shape == (0, 3)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("mk,kn->mn", [(40, 16), (16, 50)]),
        ("km,kn->mn", [(16, 40), (16, 50)]),
        ("mk,kn->nm", [(40, 16), (16, 50)]),
        ("bij,bjk->bik", [(3, 40, 16), (3, 16, 20)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 40, 16), (2, 3, 50, 16)]),
        ("bhqk,bkhd->bqhd", [(2, 3, 40, 16), (2, 16, 3, 20)]),
        ("bsd,dhk->bshk", [(2, 5, 40), (40, 4, 20)]),
    ],
)
def test_a_product_is_one_kernel_and_no_copy(equation: str, shapes: list[tuple[int, ...]]) -> None:
    (launch,) = launches_of_operator(lambda a, b: op.einsum(equation, a, b), shapes, "fp32")
    assert launch.call.item.family == "contraction"


def test_the_kernel_is_the_one_of_a_product_by_hand() -> None:
    shapes = [(2, 3, 40, 16), (2, 3, 50, 16)]
    (ours,) = launches_of_operator(lambda q, k: op.einsum("bhqd,bhkd->bhqk", q, k), shapes, "fp32")
    (hand,) = launches_of_operator(lambda q, k: op.matmul(q, op.transpose(k)), shapes, "fp32")
    assert ours.call.shaped == hand.call.shaped
    assert ours.schedule == hand.schedule


def test_the_cheapest_order_is_taken() -> None:
    extents = {"a": 100, "b": 2, "c": 100, "d": 2}
    # (ab,bc),cd multiplies 100 * 2 * 100 twice; ab,(bc,cd) only 2 * 100 * 2 and 100 * 2 * 2.
    order = contraction_order([("a", "b"), ("b", "c"), ("c", "d")], ("a", "d"), extents)
    assert order == [(1, 2), (0, 1)]


def test_a_long_chain_is_contracted_pair_by_pair() -> None:
    letters = "abcdefghijkl"
    assert len(letters) - 1 > EXHAUSTIVE
    matrices = [torch.randn(3, 3, dtype=torch.float64) for _ in letters[1:]]
    equation = ",".join(first + second for first, second in itertools.pairwise(letters)) + "->al"
    torch.testing.assert_close(op.einsum(equation, *matrices).torch(), torch.linalg.multi_dot(matrices))


def test_gradients_are_torchs() -> None:
    a, b = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 4, 5, dtype=torch.float64)
    ours = grad.grad(lambda x: op.einsum("ij,jjk->ki", x, b).sum())(a)
    leaf = a.clone().requires_grad_()
    torch.einsum("ij,jjk->ki", leaf, b).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(ours.torch(), leaf.grad)


def test_integers_and_bf16() -> None:
    x, y = torch.randint(-9, 9, (5, 7), dtype=torch.int32), torch.randint(-9, 9, (7, 3), dtype=torch.int32)
    assert torch.equal(op.einsum("ij,jk->ik", x, y).torch(), torch.einsum("ij,jk->ik", x, y))
    assert op.einsum("ij->j", x).torch().dtype == torch.int32
    half = torch.randn(6, 8).bfloat16()
    torch.testing.assert_close(op.einsum("ij,kj->ik", half, half).torch(), half @ half.T)


def test_on_the_interpreter() -> None:
    x, y = torch.randn(2, 5, 4), torch.randn(2, 4, 3)
    there = op.tensor(x, device="interpreter"), op.tensor(y, device="interpreter")
    torch.testing.assert_close(op.einsum("bij,bjk->kbi", *there).torch(), torch.einsum("bij,bjk->kbi", x, y))


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk", [(2, 3)], "2 terms for 1 operands"),
        ("ij", [(2, 3, 4)], "'ij' for an operand of 3 dimensions"),
        ("ij->ii", [(2, 2)], "names a dimension twice"),
        ("ij->ik", [(2, 3)], "k stands in no operand"),
        ("i2", [(2, 3)], "the term 'i2'"),
        ("...i...", [(2, 3)], "letters, and one"),
        ("...i->i", [(2, 3)], "the result has no"),
        ("i->i...j", [(2,)], "j stands in no operand"),
        (3, [(2,)], "an equation of type int"),
    ],
)
def test_equations_that_are_refused(equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        op.einsum(equation, *[torch.ones(shape) for shape in shapes])


def test_extents_that_are_refused() -> None:
    with pytest.raises(ShapeMismatchError, match=r"j is 3 and 4"):
        op.einsum("ij,jk->ik", torch.ones(2, 3), torch.ones(4, 5))
    with pytest.raises(ArgumentError, match="no operands"):
        op.einsum("ij")

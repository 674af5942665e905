"""Matrix products: torch's shapes and values, settings, scalings, and what is refused."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.dtypes import bf16, fp32
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.ops import OPERATORS
from tessera.ops.counting import bytes_of, flops_of
from tests.unit.ops.torch_emitter import TorchEmitter, Value


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (7, 4, 5)),
        ((3, 4), (6, 4, 5)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
    ],
)
def test_products_are_torchs(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> None:
    a, b = torch.randn(shape_a), torch.randn(shape_b)
    torch.testing.assert_close(op.matmul(a, b).torch(), a @ b)


def test_transposed_operands_are_read_in_place() -> None:
    a, b = torch.randn(4, 3), torch.randn(5, 4)
    product = op.tensor(a).T @ op.tensor(b).T
    assert [leaf.address for leaf in product.leaves] == [a.data_ptr(), b.data_ptr()]
    torch.testing.assert_close(product.torch(), a.T @ b.T)


def test_mixed_dtypes_give_the_wider_one() -> None:
    a, b = torch.randn(3, 4).bfloat16(), torch.randn(4, 5)
    product = op.matmul(a, b)
    assert product.dtype is fp32
    torch.testing.assert_close(product.torch(), a.float() @ b)
    assert op.matmul(a, a.T, accum_dtype="fp32").dtype is bf16


def test_settings_stand_in_the_structure_and_are_checked() -> None:
    a = torch.randn(4, 4)
    tuned = op.matmul(a, a, tile_shape=(128, 128, 64), math="tf32")
    assert tuned.structure.named_attributes == {"tile_shape": (128, 128, 64), "math": "tf32"}
    for tile in ((128, 128), (128, 0, 64), (128.0, 128, 64), "abc", 128):
        with pytest.raises(ArgumentError, match="tile_shape"):
            op.matmul(a, a, tile_shape=tile)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="math"):
        op.matmul(a, a, math="fast")


@pytest.mark.parametrize(
    ("dtype", "accum_dtype"),
    [(torch.float32, "bf16"), (torch.float64, "fp32"), (torch.float32, "int32"), (torch.int64, "int32"),
     (torch.int32, "fp32")],
)  # fmt: skip
def test_sums_in_a_narrower_dtype_or_of_another_kind_are_refused(dtype: torch.dtype, accum_dtype: str) -> None:
    a = torch.ones(4, 4, dtype=dtype)
    for product in (op.matmul, op.gemm):
        with pytest.raises(DTypeError, match=f"accum_dtype {accum_dtype}"):
            product(a, a, accum_dtype=accum_dtype)


def test_integers_are_scaled_by_integers_only() -> None:
    a = torch.arange(4).reshape(2, 2)
    for scale in (3.0, 3, -1.0):
        assert torch.equal(op.gemm(a, a, a, alpha=scale, beta=scale).torch(), int(scale) * (a @ a + a))
    with pytest.raises(ArgumentError, match=r"alpha=0\.5"):
        op.gemm(a, a, a, alpha=0.5)
    with pytest.raises(ArgumentError, match=r"beta=0\.7"):
        op.gemm(a, a, a, beta=0.7)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "hint"), [((4, 3), (4, 5), "first"), ((3, 4), (5, 4), "second"), ((3, 4), (6, 5), None)]
)
def test_a_transposition_that_would_fit_is_the_hint(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], hint: str | None
) -> None:
    with pytest.raises(ShapeMismatchError) as caught:
        op.matmul(torch.ones(shape_a), torch.ones(shape_b))
    assert caught.value.hints == (() if hint is None else (f"transpose the {hint} operand",))


@pytest.mark.parametrize(
    ("shape_a", "shape_b"), [((3, 4), (5, 6)), ((4,), (5, 6)), ((3, 4), (3,)), ((2, 3, 4), (5, 4, 6))]
)
def test_shapes_that_do_not_fit_are_named(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatchError) as caught:
        op.matmul(torch.ones(shape_a), torch.ones(shape_b))
    assert str(shape_a) in caught.value.message
    assert str(shape_b) in caught.value.message


def test_numbers_have_no_matrix_product() -> None:
    with pytest.raises(ShapeMismatchError):
        op.matmul(torch.ones(3, 4), 2.0)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2, 0.5), (-1, 0), (3.7, 1.0), (1.0, 0.1)])
def test_gemm_scales_product_and_addend(alpha: float, beta: float) -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    expected = alpha * (a @ b) + beta * c
    torch.testing.assert_close(op.gemm(a, b, c, alpha=alpha, beta=beta).torch(), expected)
    torch.testing.assert_close(op.gemm(a, b, alpha=alpha).torch(), alpha * (a @ b))


def test_gemm_does_not_read_an_addend_scaled_by_zero() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.full((5,), float("nan"))
    for alpha in (1.0, 3.3):
        assert not op.gemm(a, b, c, alpha=alpha, beta=0).torch().isnan().any()
    with pytest.raises(ShapeMismatchError, match="C does not broadcast"):
        op.gemm(a, b, torch.ones(2, 3, 5))


def test_bodies_compute_what_references_say() -> None:
    a, b, c = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 4), (4, 5), (5,)))
    settings = {"tile_shape": None, "math": None}
    for name, operands, attributes in (
        ("matmul", (a, b), settings),
        ("gemm", (a, b), {"alpha": 2.0, "beta": 1.0, **settings}),
        ("gemm", (a, b, c), {"alpha": 2.0, "beta": 0.5, **settings}),
    ):
        record = OPERATORS[name]
        result = record.body(TorchEmitter(), *(Value(x) for x in operands), **attributes)
        torch.testing.assert_close(result.tensor, record.reference(*operands, **attributes))


def test_costs() -> None:
    structure = op.matmul(torch.ones(7, 3, 4), torch.ones(4, 5)).structure
    record = OPERATORS["matmul"]
    assert flops_of(record, structure.operands, structure, structure.named_attributes) == 2 * 7 * 3 * 4 * 5
    assert bytes_of(record, structure.operands, structure, {}) == 4 * (7 * 12 + 20 + 7 * 15)


def test_out_is_written_in_place() -> None:
    a, b, out = torch.randn(3, 4), torch.randn(4, 5), torch.full((3, 5), -1.0)
    version = out._version
    result = op.matmul(a, b, out=out)
    torch.testing.assert_close(out, a @ b)
    assert out._version > version
    assert result.leaves[0].address == out.data_ptr()
    strided = torch.empty(5, 3).T
    op.matmul(a, b, out=strided)
    torch.testing.assert_close(strided, a @ b)
    array = torch.empty(3, 5).numpy()
    op.matmul(a, b, out=array)
    torch.testing.assert_close(torch.from_numpy(array), a @ b)


def test_out_of_the_wrong_kind_is_refused() -> None:
    a = torch.randn(4, 4)
    with pytest.raises(ShapeMismatchError, match=r"out= of shape \(4, 5\)"):
        op.matmul(a, a, out=torch.empty(4, 5))
    with pytest.raises(DTypeError, match="out= of fp64"):
        op.matmul(a, a, out=torch.empty(4, 4, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="shares memory"):
        op.matmul(a, a, out=a)
    with pytest.raises(ArgumentError, match="overlaps itself"):
        op.matmul(a, a, out=torch.empty(4).expand(4, 4))
    with pytest.raises(ArgumentError, match="type list"):
        op.matmul(a, a, out=[])  # type: ignore[arg-type]
    frozen = torch.empty(4, 4).numpy()
    frozen.setflags(write=False)
    with pytest.raises(ArgumentError, match="read-only"):
        op.matmul(a, a, out=frozen)


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [((331, 67), (67,)), ((331, 67), (67, 1)), ((2, 131, 130), (130,)), ((3, 1, 131, 130), (2, 130, 1))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_column_is_multiplied_as_a_row(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], dtype: torch.dtype, transposed: bool
) -> None:
    a, b = ((torch.randn(shape) * 4).to(dtype) for shape in (shape_a, shape_b))
    a = a.mT.contiguous().mT if transposed else a
    product = op.matmul(a, b)
    exact = a.double() @ b.double()
    limit = 1e-2 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(product.torch().double(), exact, rtol=limit, atol=limit * 100)
    torch.testing.assert_close(op.relu(product + 1).torch().double(), (exact + 1).relu(), rtol=limit, atol=limit * 200)
    lazy = op.matmul(op.neg(a), b)
    torch.testing.assert_close(lazy.torch().double(), -exact, rtol=limit, atol=limit * 100)


def test_one_column_that_does_not_fit_is_refused_as_it_was_given() -> None:
    with pytest.raises(ShapeMismatchError, match=r"\(200, 100\).*\(99, 1\)"):
        op.matmul(torch.ones(200, 100), torch.ones(99, 1))
    with pytest.raises(DTypeError, match=r"\(200, 100\) bool"):
        op.matmul(torch.ones(200, 100, dtype=torch.bool), torch.ones(100, 1, dtype=torch.bool))

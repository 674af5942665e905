"""`op.constant`: one packed copy, shared, remade when the contents change, gone with them, and never a stale result."""

from __future__ import annotations

import gc
import threading
from itertools import product
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

import tessera
from tessera import Tensor, grad, op, profile, settings, stream
from tessera.errors import ArgumentError, GradDetachedError, MemoryLimitError
from tessera.lazy.leaves.constants import ConstantLeaf
from tessera.lazy.policy import policy
from tessera.runtime.memory import buffers
from tessera.runtime.memory.derived import derivation
from tessera.scheduling.families.product.decompositions.few_columns import FEW
from tessera.target import detect
from tests.whole import examples, some

RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float64: 1e-13}


def copies(constant: Tensor) -> int:
    """How many copies kernels keep of a constant."""
    (leaf,) = constant.leaves
    assert isinstance(leaf, ConstantLeaf)
    return len(leaf.copies.made)


def held() -> int:
    """Bytes that are in use, without what idle plans keep for their next calls."""
    gc.collect()
    tessera.empty_cache()
    return buffers.memory_stats()["allocated_bytes"]


def check(x: torch.Tensor, w: torch.Tensor, result: Tensor) -> None:
    """Asserts that a product is right, to the precision of its dtype and the size of its terms."""
    expected = x.double() @ w.double()
    bound = RELATIVE[x.dtype] * (x.double().abs() @ w.double().abs())
    assert bool(((result.torch().double() - expected).abs() <= bound + 1e-12).all())


@checked(max_examples=examples(20, 40), deadline=None)
@given(
    st.integers(0, 40),
    st.integers(0, 300),
    st.integers(0, 70),
    st.sampled_from(list(RELATIVE)),
    st.booleans(),
    st.sampled_from(((), (3,), (2, 3), (1, 3))),
)
def test_products_with_constants(
    m: int, k: int, n: int, dtype: torch.dtype, turned: bool, batch: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(m + 41 * k)
    x = torch.randn(*batch, m, k, generator=generator).to(dtype)
    w = torch.randn(*batch[1:], *((n, k) if turned else (k, n)), generator=generator).to(dtype)
    constant = op.constant(w)
    order = (*range(w.ndim - 2), w.ndim - 1, w.ndim - 2)
    weights = op.transpose(constant, order) if turned else constant
    check(x, w.mT if turned else w, op.matmul(x, weights))
    few_columns = n <= FEW < m  # a matrix by these is read along K, and they beside it
    if 0 not in (m, n, *batch) and k > 1 and not few_columns:
        assert copies(constant) == 1


@pytest.mark.parametrize(
    ("narrow", "wide", "rows"),
    some(
        product(
            (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16),
            (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn),
            (1, 5, 40),
        ),
        lambda case: case[:2],
    ),
)
def test_narrow_weights_are_packed_whatever_they_meet(narrow: torch.dtype, wide: torch.dtype, rows: int) -> None:
    x, w = torch.randn(rows, 70).to(wide), torch.randn(90, 70).to(narrow)
    result = op.matmul(x, op.constant(w).T)
    is_rounded = {wide, narrow} == {torch.float16, torch.bfloat16}  # by neither: both are cast to fp32
    assert (f"panels of {2 * detect().vector_bits // 32} columns" in result.inspect("schedule")) or is_rounded
    value, exact = result.torch().double(), x.double() @ w.double().T
    eps = {4: 1e-5, 2: 2.0**-7, 1: 2.0**-2}[result.torch().element_size()]
    assert bool(((value - exact).abs() <= eps * (x.double().abs() @ w.double().abs().T)).all())


def test_one_copy_serves_all_numbers_of_rows_all_views_and_all_marks() -> None:
    w = torch.randn(300, 200)
    constant = op.constant(w)
    sizes = []
    for rows in (1, 2, 5, 8, 33, 300):
        x = torch.randn(rows, 200)
        check(x, w.T, op.matmul(x, constant.T))
        check(x, w.T, op.matmul(x, op.constant(w).T))
        check(x, w.T, op.kernel(lambda x, w: op.matmul(x, op.transpose(w, (1, 0))))(x, constant))
        sizes.append(held())
    assert copies(constant) == 1
    assert max(sizes) - sizes[0] < 300 * 200 * 4


def test_a_copy_is_found_again_after_thousands_of_others() -> None:
    w = torch.randn(64, 48)
    constant = op.constant(w)
    check(x := torch.randn(3, 64), w, op.matmul(x, constant))
    ((made, _),) = constant.leaves[0].copies.made  # type: ignore[attr-defined]
    form, dtype = made.form, made.dtype
    held_by_plans = [derivation(form, dtype, made.shape, made.strides, offset) for offset in range(1, 5001)]
    assert len(held_by_plans) == len(set(held_by_plans))

    check(x := torch.randn(2, 5, 64), w, op.matmul(x, constant))  # another plan

    assert copies(constant) == 1
    del held_by_plans


def test_what_was_changed_in_place_is_packed_again() -> None:
    w, x = torch.randn(64, 96), torch.randn(4, 64)
    constant = op.constant(w)
    turned = constant.T.T
    check(x, w, op.matmul(x, constant))
    pending = op.matmul(x, constant)
    w.mul_(-2)
    check(x, w, op.matmul(x, constant))
    check(x, w, op.matmul(x, turned))
    check(x, w, pending)
    w[3, 5] = 1000.0
    out = torch.empty(4, 96)
    op.matmul(x, constant).eval(out=out)
    torch.testing.assert_close(out, x @ w)
    assert copies(constant) == 1


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64, numpy.float16])
def test_a_constant_of_an_array_has_what_it_held_when_it_was_marked(dtype: Any) -> None:
    x = torch.randn(3, 40).to(torch.from_numpy(numpy.zeros(1, dtype)).dtype)
    array = numpy.random.default_rng(0).standard_normal((40, 50)).astype(dtype)
    first, before = op.constant(array), torch.from_numpy(array.copy())
    check(x, before, op.matmul(x, first))
    array[3, :] = numpy.nan
    array[3, 7:] = 2.0
    check(x, before, op.matmul(x, first))
    again = op.constant(array)
    assert op.matmul(x, again).torch()[:, :7].isnan().all()
    check(x, torch.from_numpy(array)[:, 7:], op.matmul(x, again[:, 7:]))


def test_an_unchanged_array_is_copied_and_packed_once() -> None:
    array = numpy.full((64, 96), numpy.nan, numpy.float32)
    first, second = op.constant(array), op.constant(array)
    op.matmul(torch.randn(2, 64), first).eval()
    op.matmul(torch.randn(2, 64), second).eval()
    assert first.leaves[0].address == second.leaves[0].address != array.__array_interface__["data"][0]
    assert copies(first) == copies(second) == 1
    part = op.constant(op.tensor(array)[8:])
    assert part.leaves[0].address != first.leaves[0].address
    assert part.shape == (56, 96)


def test_a_read_only_array_is_not_copied() -> None:
    array = numpy.ones((8, 9), numpy.float32)
    view = array.view()
    view.setflags(write=False)
    address = array.__array_interface__["data"][0]
    assert op.constant(view).leaves[0].address != address  # its base can be written to
    array.setflags(write=False)
    assert op.constant(view).leaves[0].address == address


def test_no_memory_for_the_copy_of_an_array_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    array = numpy.ones((8, 9), numpy.float32)
    with monkeypatch.context() as short:
        short.setattr(torch, "empty_like", refuse)
        with pytest.raises(MemoryLimitError, match="288 bytes"):
            op.constant(array)
    check(torch.ones(2, 8), torch.from_numpy(array), op.matmul(torch.ones(2, 8), op.constant(array)))


def test_copies_go_with_the_tensor() -> None:
    w, x = torch.randn(1024, 1024), torch.randn(2, 1024)
    before = held()
    op.matmul(x, op.constant(w)).eval()
    assert held() - before >= w.nbytes
    del w
    assert held() - before < 1 << 20


def test_a_copy_for_which_there_is_no_memory_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    w, x = torch.randn(3000, 3000), torch.randn(1, 3000)
    constant = op.constant(w)
    op.matmul(x, w).eval()
    gc.collect()
    tessera.empty_cache()
    with settings.override(memory_limit_bytes=8 << 20), pytest.raises(MemoryLimitError):
        op.matmul(x, constant).eval()
    assert copies(constant) == 0
    check(x, w, op.matmul(x, constant))


def test_results_arrays_and_parts_are_constants_too() -> None:
    x = torch.randn(3, 40)
    array = numpy.random.default_rng(0).standard_normal((40, 50)).astype(numpy.float32)
    check(x, torch.from_numpy(array), op.matmul(x, op.constant(array)))
    made = torch.randn(40, 50)
    check(x, made + 1, op.matmul(x, op.constant(op.tensor(made) + 1)))
    check(x, made[:, 7:41], op.matmul(x, op.constant(made)[:, 7:41]))


def test_what_goes_around_a_product_stays_in_its_kernel() -> None:
    w, x, bias = torch.randn(48, 90), torch.randn(5, 48), torch.randn(90)
    result = op.gelu(op.matmul(op.relu(op.tensor(x)), op.constant(w)) + bias)
    assert f"panels of {2 * detect().vector_bits // 32} columns" in result.inspect("schedule")
    expected = torch.nn.functional.gelu(x.double().relu() @ w.double() + bias.double())
    torch.testing.assert_close(result.torch().double(), expected, rtol=1e-4, atol=1e-4)
    scaled = op.matmul(x, op.constant(w) * 2.0)
    assert "panels" not in scaled.inspect("schedule")
    check(x, 2 * w, scaled)
    square = op.constant(torch.randn(32, 32))
    check(square.torch(), square.torch(), op.matmul(square, square))


def test_policies_streams_and_profiles() -> None:
    w, x = torch.randn(256, 200), torch.randn(8, 256)
    constant = op.constant(w)
    with policy("deterministic"):
        check(x, w, op.matmul(x, constant))
    side = stream.create()
    check(x, w, op.matmul(x, constant, stream=side))
    with profile.session() as session:
        check(x, w, op.matmul(x, constant))
    assert [record.operator for record in session.records() if record.kind == "kernel"] == ["matmul"]
    assert copies(constant) == 1


def test_threads_share_one_copy() -> None:
    w, x = torch.randn(512, 512), torch.randn(4, 512)
    constant, results = op.constant(w), []

    def work() -> None:
        results.append(op.matmul(x, constant).torch())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert all(torch.equal(result, results[0]) for result in results)
    assert copies(constant) == 1


def test_threads_that_mark_one_tensor_share_its_copies() -> None:
    weights = [torch.randn(4, 4) for _ in range(200)]
    marked: list[list[Tensor]] = [[] for _ in range(4)]
    start = threading.Barrier(len(marked))

    def mark(into: list[Tensor]) -> None:
        start.wait()
        into.extend(op.constant(w) for w in weights)

    threads = [threading.Thread(target=mark, args=(into,)) for into in marked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for same in zip(*marked, strict=True):
        (shared,) = {id(tensor.leaves[0].copies) for tensor in same}
        assert shared


def test_gradients_of_functions_that_use_a_constant() -> None:
    w, x = torch.randn(6, 7), torch.randn(3, 6)
    gradient = grad.grad(lambda w: op.sum(op.matmul(x, w)))(op.constant(w))
    torch.testing.assert_close(gradient.torch(), x.sum(0)[:, None].expand(6, 7))


def test_what_is_no_constant_is_refused() -> None:
    with pytest.raises(ArgumentError, match="traced"):
        op.kernel(lambda x: op.matmul(x, op.constant(x)))(torch.randn(3, 3))
    with pytest.raises(GradDetachedError):
        op.constant(torch.nn.Parameter(torch.randn(3, 3)))


def test_the_interpreter_reads_constants_where_they_are() -> None:
    w, x = torch.randn(20, 30), torch.randn(3, 20)
    constant = op.constant(w).to("interpreter")
    check(x, w, op.matmul(op.tensor(x, device="interpreter"), constant))


def test_a_constant_keeps_its_memory_where_the_tensor_is_given_other_memory() -> None:
    weight = torch.nn.Parameter(torch.randn(1 << 11, 1 << 10))  # so large that freed memory is no memory any more
    x, before = torch.randn(3, 1 << 11), weight.detach().clone()
    with torch.no_grad():
        made = op.constant(weight)
        weight.data = torch.zeros(1 << 11, 1 << 10)  # what `module.to(...)` does to parameters
        check(x, before, op.matmul(x, made))
        torch.testing.assert_close(made.torch(), before)
        assert not op.matmul(x, op.constant(weight)).torch().any()

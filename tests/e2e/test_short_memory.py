"""Every allocation of a plan refused in turn: an error before anything is written, nothing kept, the next call works.

One kernel, several, workspaces, temporaries, packed weights and calls of libraries.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional

import tessera
from tessera import Tensor, op
from tessera.errors import MemoryLimitError
from tessera.runtime.memory.buffers import Allocator
from tests.whole import some

MOST = 40
"""More allocations than any plan here makes."""

Expression = Callable[[], tuple[Tensor, torch.Tensor]]


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _product() -> tuple[Tensor, torch.Tensor]:
    a, b = _normal(320, 300), _normal(300, 310)
    return op.relu(op.matmul(a, b)), (a @ b).relu()


def _constant_product() -> tuple[Tensor, torch.Tensor]:
    a, b = _normal(16, 400), _normal(410, 400)
    return op.matmul(a, op.constant(b).T), a @ b.T


def _convolution() -> tuple[Tensor, torch.Tensor]:
    x, w = _normal(2, 16, 40, 40), _normal(32, 16, 3, 3)
    return op.conv2d(x, w, padding=1), functional.conv2d(x, w, padding=1)


def _constant_convolution() -> tuple[Tensor, torch.Tensor]:
    x, w = _normal(2, 16, 40, 40), _normal(64, 16, 3, 3)
    return op.relu(op.conv2d(x, op.constant(w), padding=1)), functional.conv2d(x, w, padding=1).relu()


def _windows() -> tuple[Tensor, torch.Tensor]:
    x, w = _normal(2, 32, 41, 41), _normal(32, 1, 3, 3)
    ours = op.max_pool2d(op.depthwise_conv2d(x, w, padding=1), 2)
    return ours, functional.max_pool2d(functional.conv2d(x, w, padding=1, groups=32), 2)


def _attention() -> tuple[Tensor, torch.Tensor]:
    q, k, v = _normal(4, 130, 64), _normal(4, 150, 64), _normal(4, 150, 64)
    return op.flash_attention(q, k, v), functional.scaled_dot_product_attention(q, k, v)


def _decoding() -> tuple[Tensor, torch.Tensor]:
    q, k, v = _normal(80, 1, 64), _normal(80, 1100, 64), _normal(80, 1100, 64)
    # Parts of the keys need a workspace, of more bytes than the slabs that other tests may have left hold. How many
    # parts there are by default hangs on workers and on measured ceilings.
    return op.flash_attention(q, k, v).pin(lanes="head", parts=2), functional.scaled_dot_product_attention(q, k, v)


def _spectral() -> tuple[Tensor, torch.Tensor]:
    x, w = _normal(1, 4, 70, 70), _normal(4, 1, 31, 31)
    ours = op.spectral_conv(x, op.constant(w), padding=15, groups=4)
    return ours, functional.conv2d(x, w, padding=15, groups=4)


def _library() -> tuple[Tensor, torch.Tensor]:
    x = _normal(300, 200)
    return op.cumsum(op.exp(x), 1) + op.irfft(op.rfft(x), 200), x.exp().cumsum(1) + x


def _several() -> tuple[Tensor, torch.Tensor]:
    x, w = _normal(300, 256), _normal(256, 256)
    y = op.softmax(op.matmul(op.layer_norm(op.tensor(x)), w))
    return op.sum(op.matmul(y, w) * op.tensor(x), axis=0), (
        (functional.layer_norm(x, (256,)) @ w).softmax(-1) @ w * x
    ).sum(0)


CASES: dict[str, Expression] = {
    "product": _product,
    "product with a constant": _constant_product,
    "convolution": _convolution,
    "convolution with a constant": _constant_convolution,
    "windows": _windows,
    "attention": _attention,
    "decoding": _decoding,
    "spectral convolution": _spectral,
    "library": _library,
    "several kernels": _several,
}


@contextmanager
def refused(number: int) -> Iterator[list[int]]:
    """Allocations of pages by this thread, of which the one of this number fails; the list has the sizes asked for."""
    asked: list[int] = []
    take = Allocator._allocate_pages
    thread = threading.get_ident()

    def counted(self: Allocator, nbytes: int) -> int:
        if threading.get_ident() != thread:
            return take(self, nbytes)  # other tests may have left some at work
        asked.append(nbytes)
        if len(asked) == number + 1:
            raise MemoryLimitError("there is no more memory")
        return take(self, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Allocator, "_allocate_pages", counted)
        yield asked


def _allocated() -> int:
    gc.collect()
    tessera.empty_cache()
    return tessera.memory_stats()["allocated_bytes"]


@pytest.mark.parametrize("name", some(CASES))
def test_each_allocation_may_fail(name: str) -> None:
    made, expected = CASES[name]()
    out = torch.full_like(expected, torch.nan)
    for number in range(MOST):
        before = _allocated()
        if _succeeds(made, out, number):
            break
        assert bool(out.isnan().all()), "something was written before the error"
        made, _ = CASES[name]()  # packed weights go with the expression that they were made for
        assert _allocated() <= before
    assert 0 < number < MOST - 1
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)


def _succeeds(made: Tensor, out: torch.Tensor, number: int) -> bool:
    """Whether an evaluation makes fewer allocations than would reach the one that fails."""
    with refused(number) as asked:
        try:
            made.eval(out)
        except MemoryLimitError:
            assert len(asked) == number + 1
            return False
    return True

"""The most memory that Tessera holds at one time, its cache included, against what eager torch holds for the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tessera
from tessera import Tensor, op
from tessera.runtime.memory import buffers

SLACK = 2 * buffers.SLAB_BYTES
"""Small blocks come from slabs, which are counted whole."""

PACKED_BYTES = 12 << 20
"""What products may take beside results and temporaries: packed blocks of both operands, for two workers."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that torch's operators make, as long as they live."""

    def __init__(self, operands: tuple[torch.Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known = {operand.untyped_storage().data_ptr() for operand in operands}
        self.live: int = 0
        self.peak: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for storage in [leaf.untyped_storage() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]:
            if storage.data_ptr() not in self.known:
                self._hold(storage)
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        address, nbytes = storage.data_ptr(), storage.nbytes()
        self.known.add(address)
        self.live += nbytes
        self.peak = max(self.peak, self.live)

        def let_go() -> None:
            self.known.discard(address)
            self.live -= nbytes

        weakref.finalize(storage, let_go)


def peak_of_eager(function: Callable[..., torch.Tensor], operands: tuple[torch.Tensor, ...]) -> int:
    """Bytes that torch's results and intermediates take at the same time."""
    counted = LiveBytes(operands)
    with counted:
        function(*operands)
    return counted.peak


def peak_of_tessera(function: Callable[..., Tensor], operands: tuple[torch.Tensor, ...]) -> int:
    """Bytes that the allocator takes from the system for one evaluation, what it keeps for later included."""
    function(*operands).eval()
    gc.collect()
    tessera.empty_cache()
    buffers.reset_peak_memory_stats()
    before = tessera.memory_stats()["reserved_bytes"]
    result = function(*operands).eval()
    peak = tessera.memory_stats()["peak_reserved_bytes"] - before
    del result
    return peak


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


ROWS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., Tensor]]] = {
    "add": (lambda x: x + 1.0, lambda x: op.tensor(x) + 1.0),
    "softmax": (lambda x: torch.softmax(x, -1), op.softmax),
    "layer norm": (lambda x: functional.layer_norm(x, (x.shape[-1],)), op.layer_norm),
    "sum": (torch.sum, op.sum),
    "sum of columns": (lambda x: x.sum(0), lambda x: op.sum(x, 0)),
    "argmax": (lambda x: x.argmax(-1), lambda x: op.argmax(x, -1)),
    "maps": (lambda x: torch.tanh(x * 2.0) + x.sigmoid(), lambda x: op.tanh(op.tensor(x) * 2.0) + op.sigmoid(x)),
    "transposed": (lambda x: x.t().contiguous() + 1.0, lambda x: op.tensor(x).T + 1.0),
}


@pytest.mark.parametrize("name", ROWS)
def test_maps_and_reductions_take_no_more_than_eager(name: str) -> None:
    eager, ours = ROWS[name]
    x = normal(1024, 1024)
    assert peak_of_tessera(ours, (x,)) <= peak_of_eager(eager, (x,)) + SLACK


def test_a_fused_network_takes_less_than_eager() -> None:
    operands = normal(1024, 512), normal(512, 4096), normal(4096, 512)
    eager = peak_of_eager(lambda x, a, b: functional.gelu(x @ a) @ b, operands)
    ours = peak_of_tessera(lambda x, a, b: op.matmul(op.gelu(op.matmul(x, a)), b), operands)
    assert ours < 0.9 * eager


def test_a_product_takes_its_result_and_packed_blocks() -> None:
    operands = normal(1024, 1024), normal(1024, 1024)
    assert peak_of_tessera(op.matmul, operands) <= peak_of_eager(torch.matmul, operands) + PACKED_BYTES + SLACK


def test_sizes_that_take_turns_hold_no_more_than_the_largest_moment() -> None:
    sizes = (300, 1100, 700, 1024, 2048, 512, 900, 1600)
    largest = max(4 * 2 * rows * 256 for rows in sizes)  # a result, and the one before it until that is replaced
    x = normal(max(sizes), 256)
    for rows in sizes:
        op.softmax(x[:rows]).eval()
    gc.collect()
    tessera.empty_cache()
    buffers.reset_peak_memory_stats()
    before = tessera.memory_stats()["reserved_bytes"]
    result = None
    for _ in range(3):
        for rows in sizes:
            result = op.softmax(x[:rows]).eval()
    assert result is not None
    assert tessera.memory_stats()["peak_reserved_bytes"] - before <= largest + SLACK


def test_a_chain_of_products_takes_two_buffers_as_eager_does() -> None:
    operands = normal(1024, 1024), normal(1024, 1024) / 32

    def eager(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x @ a
        return x

    def ours(x: torch.Tensor, a: torch.Tensor) -> Tensor:
        result = op.tensor(x)
        for _ in range(5):
            result = result @ a
        return result

    assert peak_of_tessera(ours, operands) <= peak_of_eager(eager, operands) + PACKED_BYTES + SLACK
    torch.testing.assert_close(ours(*operands).torch(), eager(*operands), rtol=1e-3, atol=1e-4)


def test_temporaries_in_the_memory_of_several_results_do_not_disturb_them() -> None:
    x, a = normal(64, 64), normal(64, 64)
    first = op.matmul(op.tensor(x), a)
    second = op.softmax(op.matmul(first, a), -1)
    third = op.matmul(op.sum(op.matmul(second, a), 0, keepdims=True), a)
    tessera.eval(second, third)
    expected = torch.softmax(x.double() @ a.double() @ a.double(), -1)
    torch.testing.assert_close(second.torch().double(), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        third.torch().double(), (expected @ a.double()).sum(0, keepdim=True) @ a.double(), rtol=1e-3, atol=1e-3
    )

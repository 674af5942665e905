"""Small calls whose time is overhead: on 16 elements the arithmetic is free. Runs inside worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ELEMENTS = 16
FURTHER = 20
"""Operators in the long graph beyond the first."""

Call = Callable[[], object]


def _tensors() -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randn(ELEMENTS, generator=generator), torch.randn(ELEMENTS, generator=generator)


def _chain(add: Callable[[Any, Any], Any], x: Any, y: Any, length: int) -> Any:
    for _ in range(length):
        x = add(x, y)
    return x


def tessera_nodes(length: int, evaluate: bool) -> Call:
    """A chain of `length` additions made of lazy tensors, evaluated or thrown away."""
    from tessera import op

    x, y = (op.tensor(t) for t in _tensors())
    add = op.add
    if length == 1:
        return (lambda: add(x, y).eval()) if evaluate else (lambda: add(x, y))
    if evaluate:
        return lambda: _chain(add, x, y, length).eval()
    return lambda: _chain(add, x, y, length)


def _five(ops: Any) -> Callable[[Any, Any], Any]:
    def five(x: Any, y: Any) -> Any:
        return ops.exp(ops.tanh(x * y + x)) - y

    return five


def tessera_kernel() -> Call:
    """An `@op.kernel` of five operators called on torch tensors and evaluated."""
    from tessera import op

    x, y = _tensors()
    five = op.kernel(_five(op))
    return lambda: five(x, y).eval()


def torch_chain(length: int) -> Call:
    """`length` additions in torch eager."""
    import torch

    x, y = _tensors()
    add = torch.add
    return (lambda: add(x, y)) if length == 1 else (lambda: _chain(add, x, y, length))


def torch_five() -> Call:
    """The five operators in torch eager."""
    import torch

    x, y = _tensors()
    five = _five(torch)
    return lambda: five(x, y)


def compiled_chain(length: int) -> Call:
    """`length` additions under `torch.compile`."""
    import torch

    x, y = _tensors()

    def chain(x: Any, y: Any) -> Any:
        return _chain(torch.add, x, y, length)

    compiled = torch.compile(chain, mode="max-autotune", dynamic=False)
    return lambda: compiled(x, y)


def compiled_five() -> Call:
    """The five operators under `torch.compile`."""
    import torch

    x, y = _tensors()
    compiled = torch.compile(_five(torch), mode="max-autotune", dynamic=False)
    return lambda: compiled(x, y)


CALLS: dict[str, Callable[[], Call]] = {
    "tessera node": lambda: tessera_nodes(1, evaluate=False),
    "tessera node+eval": lambda: tessera_nodes(1, evaluate=True),
    "tessera long": lambda: tessera_nodes(1 + FURTHER, evaluate=False),
    "tessera long+eval": lambda: tessera_nodes(1 + FURTHER, evaluate=True),
    "tessera kernel": tessera_kernel,
    "torch one": lambda: torch_chain(1),
    "torch long": lambda: torch_chain(1 + FURTHER),
    "torch five": torch_five,
    "compiled one": lambda: compiled_chain(1),
    "compiled long": lambda: compiled_chain(1 + FURTHER),
    "compiled five": compiled_five,
}

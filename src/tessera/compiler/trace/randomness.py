"""Random numbers of torch in a function that is traced: drawn once, they would be the same at every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tessera.errors import FrozenRandomError

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class _Undrawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise FrozenRandomError(
                f"a kernel draws random numbers by torch ({func}) while it is traced, which happens once",
                hints=[
                    "draw them outside, and give them to the kernel",
                    "or use op.rand, op.randn or op.dropout, whose seed is an operand",
                ],
            )
        return func(*args, **(kwargs or _NOTHING))


def undrawn() -> AbstractContextManager[object]:
    """Refuses, in a `with` block on the calling thread, operators of torch that draw from a generator, by
    FrozenRandomError (E_FROZEN_RANDOM).
    """
    mode: AbstractContextManager[object] = _Undrawn()  # type: ignore[no-untyped-call]
    return mode

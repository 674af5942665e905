"""Eager torch operators in a session, on request: so that its timeline has no holes where a program leaves Tessera."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Note = Callable[..., None]


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes every operator that torch runs on the thread that entered it, with the time that its call took."""

    def __init__(self, note: Note, *, record_shapes: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note, self._record_shapes = note, record_shapes

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        start_ns = time.monotonic_ns()
        result = func(*args, **(kwargs or {}))
        told: dict[str, Any] = {"operator": func.overloadpacket.__name__, "backend": "torch"}
        if self._record_shapes:
            told["shapes"] = str([list(each.shape) for each in args if isinstance(each, torch.Tensor)]).replace(" ", "")
        self._note("operator", str(func), start_ns, **told)
        return result

"""Tensors that are unpickled: a process that does so may have imported nothing of Tessera, and gets whole ones."""

from __future__ import annotations

import torch

from tessera import array_api as _array_api  # noqa: F401 - gives tensors `__array_namespace__`
from tessera import handle
from tessera.doors.protocols import methods as _methods  # noqa: F401 - gives tensors the methods that are operators
from tessera.doors.protocols import numpy_functions as _numpy_functions  # noqa: F401 - gives tensors NumPy's protocols
from tessera.handle import Tensor


def unpickled(values: torch.Tensor, device: str, dtype: torch.dtype) -> Tensor:
    """The tensor of these values, which lie in another dtype where torch pickles none of theirs."""
    return handle.restored(values, device, dtype)


Tensor.unpickler = unpickled

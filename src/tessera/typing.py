"""Types of what operators take, for programs that are checked."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy
import torch

from tessera.dtypes import DType
from tessera.handle import Tensor

__all__ = ["ArrayLike", "DLPackProducer", "DTypeLike", "Operand"]


class DLPackProducer(Protocol):
    """An array of another library."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """The array's memory."""


ArrayLike: TypeAlias = Tensor | torch.Tensor | numpy.ndarray[Any, Any] | numpy.generic | DLPackProducer | int | float
"""What operators take for a tensor. Nested lists are not: `op.tensor` makes tensors of them."""

DTypeLike: TypeAlias = DType | str | torch.dtype | numpy.dtype[Any] | type
"""What names a dtype: "bf16", torch.bfloat16, ..."""

Operand: TypeAlias = Any
"""A parameter of a kernel that takes all that is array-like, and is a tensor inside. No type says both, so checkers let
anything pass; a parameter that is a `Tensor` has to be given one.
"""

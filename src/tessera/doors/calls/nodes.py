"""How doors make nodes: typed, since `ops` makes nodes of the class that `handle` installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from tessera.handle import Tensor
from tessera.lazy import issuing
from tessera.lazy.leaves.conversion import as_node
from tessera.ops import algebra
from tessera.runtime.streams.stream import Stream

Number: TypeAlias = int | float


node = cast(Callable[[object], Tensor], as_node)
"""The node of anything that a tensor can be made of."""

call = cast(Callable[..., Tensor], algebra.call)
"""The node of an operator by its name; numbers adapt to the tensors beside them."""

unary = cast(Callable[[str, object, Stream | None], Tensor], algebra.call_unary)
"""The node of an operator of one operand, on a stream where one is given."""

binary = cast(Callable[[str, object, object, Stream | None], Tensor], algebra.call_binary)
"""The node of an operator of two operands, on a stream where one is given."""

on = cast(Callable[[Any, Stream | None], Tensor], issuing.on)
"""A node, issued on a stream where one is given."""

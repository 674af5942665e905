"""Results that one computation gives together: whoever evaluates one of them has all that are still wanted."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TypeAlias

import numpy
import torch

from tessera.handle import Tensor
from tessera.lazy import evaluation
from tessera.runtime.streams.stream import Stream

_References: TypeAlias = tuple[weakref.ref[Tensor], ...]

_partners: dict[int, tuple[weakref.ref[Tensor], _References]] = {}
"""By `id`, since tensors compare element by element: what forgets the entry with its tensor, and the partners."""


class JointTensor(Tensor):
    """A tensor that is evaluated with its partners, as far as these are alive and pending."""

    __slots__ = ()

    def eval(self, out: torch.Tensor | numpy.ndarray | None = None, stream: Stream | None = None) -> Tensor:
        """As `Tensor.eval`; without `out` and `stream` its partners are computed too, in the same call."""
        if out is not None or stream is not None or not self.is_pending:
            return super().eval(out, stream)
        _, partners = _partners[id(self)]
        alive = [partner() for partner in partners]
        evaluation.evaluate((self, *[tensor for tensor in alive if tensor is not None and tensor.is_pending]))
        return self


def joint(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors themselves, evaluated together from now on: who noted them, a profile's session, has no others."""
    for tensor in tensors:
        number = id(tensor)
        tensor.__class__ = JointTensor
        forgetting = weakref.ref(tensor, lambda _, number=number, known=_partners: known.pop(number, None))  # type: ignore[misc]
        _partners[number] = forgetting, tuple(weakref.ref(other) for other in tensors if other is not tensor)
    return tuple(tensors)

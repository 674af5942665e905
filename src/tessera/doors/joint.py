"""Results that one computation gives together: whoever evaluates one of them has all that are still wanted."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy
import torch

from tessera.handle import Tensor
from tessera.lazy import evaluation
from tessera.runtime.streams import Stream


class JointTensor(Tensor):
    """A tensor that is evaluated with its `partners`, as far as these are alive and pending."""

    __slots__ = ("partners",)

    partners: tuple[weakref.ref[Tensor], ...]

    def eval(self, out: torch.Tensor | numpy.ndarray | None = None, stream: Stream | None = None) -> Tensor:
        """As `Tensor.eval`; without `out` and `stream` its partners are computed too, in the same call."""
        if out is not None or stream is not None or not self.is_pending:
            return super().eval(out, stream)
        alive = [partner() for partner in self.partners]
        evaluation.evaluate((self, *[tensor for tensor in alive if tensor is not None and tensor.is_pending]))
        return self


def joint(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors of these expressions that are evaluated together."""
    made = [JointTensor(tensor.state) for tensor in tensors]
    for tensor in made:
        tensor.partners = tuple(weakref.ref(other) for other in made if other is not tensor)
    return tuple(made)

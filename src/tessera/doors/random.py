"""Random choices that can be made again: functions of a seed and of an element's number."""

from __future__ import annotations

from tessera import dtypes
from tessera.doors.nodes import Number, call, node, on
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.lazy.leaf import scalar_leaf
from tessera.lazy.node import leaf_node
from tessera.ops.layout.views import flag
from tessera.runtime.streams import Stream

LARGEST_SEED = (1 << 63) - 1


def dropout(x: object, p: Number, seed: object, training: bool = True, *, stream: Stream | None = None) -> Tensor:
    """x with elements set to 0, each with probability p, and the others divided by 1 - p; x itself unless `training`.

    Which ones depends on the seed (0 to 2**63 - 1, a number or a tensor of one) and on an element's row-major number in
    x alone: neither on strides, schedules and threads, nor on what is computed in the same kernel. The choice is made
    where it is needed, in the gradient again, and stored nowhere. Bits are those of Philox-4x32-10 (Salmon et al.,
    "Parallel random numbers: as easy as 1, 2, 3", 2011): the first word of counter (number, 0) under the seed as key;
    an element is kept where it is at least p * 2**32.

    Raises ArgumentError (E_ARGUMENT) for p outside of [0, 1] and for seeds out of range, DTypeError (E_DTYPE) for
    elements that are no floats.
    """
    value = node(x)
    if type(p) not in (int, float) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p={p!r}", hints=["a probability, from 0 to 1"])
    if value.dtype.kind != "float":
        raise DTypeError(f"dropout of {value.dtype}: defined on floating-point elements only", hints=["cast to fp32"])
    key = _seed(seed)
    if not flag(training, "training") or p == 0:
        return on(value, stream)
    bits = call("philox", call("iota", shape=value.shape), key)
    kept = bits >= _scalar(round(p * 2**32))
    return on(call("where", kept, value * (1 / (1 - p) if p < 1 else 0.0), 0.0), stream)


def _seed(seed: object) -> Tensor:
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not 0 <= seed <= LARGEST_SEED:
            raise ArgumentError(f"dropout: seed={seed}", hints=[f"0 to {LARGEST_SEED}"])
        return _scalar(seed)
    key = node(seed)
    if key.shape or key.dtype.kind != "int":
        raise ArgumentError(f"dropout: a seed of shape {key.shape} and {key.dtype}", hints=["one integer"])
    return key


def _scalar(number: int) -> Tensor:
    """A number that kernels are given, so that none has code of its own."""
    return node(leaf_node(scalar_leaf(number, dtypes.int64)))

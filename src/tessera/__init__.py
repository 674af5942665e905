"""Tessera: a tile-centric tensor compiler with a built-in autotuner and profiler.

>>> from tessera import op
>>> y = op.gelu(op.matmul(a, b) + bias)     # lazy: nothing has run yet
>>> y.torch()                               # one fused kernel
"""

from tessera import dist, event, memcpy, numerics, op, profile, profiler, stream
from tessera import distribution as _distribution
from tessera import handle as _handle
from tessera.compiler import entry as _entry
from tessera.compiler.entry import autotune
from tessera.compiler.entry import evaluate_together as eval
from tessera.errors import TesseraError
from tessera.handle import Tensor
from tessera.integrations.torch import autograd as _autograd
from tessera.lazy import attached as _attached
from tessera.lazy import evaluation as _evaluation
from tessera.lazy import issuing as _issuing
from tessera.runtime.buffers import empty_cache, memory_stats

__version__ = _distribution.VERSION

_evaluation.set_evaluator(_entry.evaluate)
_attached.set_evaluator(_autograd.evaluate)
_issuing.set_issuers(_entry.issue, _entry.issue_into)
_handle.set_inspector(_entry.inspect)

__all__ = [
    "Tensor",
    "TesseraError",
    "autotune",
    "dist",
    "empty_cache",
    "eval",
    "event",
    "memcpy",
    "memory_stats",
    "numerics",
    "op",
    "profile",
    "profiler",
    "stream",
]

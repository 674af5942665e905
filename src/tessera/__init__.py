"""Tessera: a tile-centric tensor compiler with a built-in autotuner and profiler.

>>> from tessera import op
>>> y = op.gelu(op.matmul(a, b) + bias)     # lazy: nothing has run yet
>>> y.torch()                               # one fused kernel
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tessera.errors import TesseraError
from tessera.system import distribution as _distribution
from tessera.system import tracebacks as _tracebacks

if TYPE_CHECKING:
    from tessera import dist, event, memcpy, numerics, op, profile, profiler, stream
    from tessera.compiler.entry import autotune
    from tessera.compiler.entry import evaluate_together as eval
    from tessera.doors.kernels.exported import load_kernel
    from tessera.handle import Tensor
    from tessera.runtime.memory.buffers import empty_cache, memory_stats

__version__ = _distribution.VERSION
_tracebacks.install()

__all__ = [
    "Tensor",
    "TesseraError",
    "autotune",
    "dist",
    "empty_cache",
    "eval",
    "event",
    "load_kernel",
    "memcpy",
    "memory_stats",
    "numerics",
    "op",
    "profile",
    "profiler",
    "stream",
]

_HOMES: Final = {
    "Tensor": ("tessera.op", "_Tensor"),
    "autotune": ("tessera.compiler.entry", "autotune"),
    "eval": ("tessera.compiler.entry", "evaluate_together"),
    "load_kernel": ("tessera.doors.kernels.exported", "load_kernel"),
    "empty_cache": ("tessera.runtime.memory.buffers", "empty_cache"),
    "memory_stats": ("tessera.runtime.memory.buffers", "memory_stats"),
}
"""Where names live that are no modules. They are imported when they are asked for (PEP 562): torch takes seconds, and
what only reads traces does without it.
"""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES.get(name, (f"{__name__}.{name}", ""))
    found = importlib.import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""PyTorch models through Tessera: `torch.compile(model, backend="tessera")`.

Nothing has to be imported for that: an installed Tessera is known to torch by an entry point of the package. Importing
this module makes the backend known where the package's metadata does not say so.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tessera.integrations.torch import ops
    from tessera.integrations.torch.artefacts.loading import LoadedProgram, load
    from tessera.integrations.torch.artefacts.writing import aot_compile
    from tessera.integrations.torch.backend import backend
    from tessera.integrations.torch.explanation import Explanation, explain
    from tessera.integrations.torch.graphs.graph import Fallback
    from tessera.integrations.torch.library import custom_op
    from tessera.integrations.torch.partitions.partition import BackendWarning
    from tessera.integrations.torch.warming_up import warmup

__all__ = [
    "BackendWarning",
    "Explanation",
    "Fallback",
    "LoadedProgram",
    "aot_compile",
    "backend",
    "custom_op",
    "explain",
    "load",
    "ops",
    "warmup",
]

_HOMES: Final = {
    "BackendWarning": "partitions.partition",
    "Explanation": "explanation",
    "Fallback": "graphs.graph",
    "LoadedProgram": "artefacts.loading",
    "aot_compile": "artefacts.writing",
    "backend": "backend",
    "custom_op": "library",
    "explain": "explanation",
    "load": "artefacts.loading",
    "ops": "ops",
    "warmup": "warming_up",
}
"""The modules of names, imported when a name is asked for (PEP 562): a process that loads artefacts does without
Dynamo, which takes seconds.
"""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"tessera.integrations.torch.{_HOMES[name]}")
    value = module if name == "ops" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not any(each.name == "tessera" for each in entry_points(group="torch_dynamo_backends")):
    from tessera.integrations.torch.backend import register

    register()

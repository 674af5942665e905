"""PyTorch models through Tessera: `torch.compile(model, backend="tessera")`.

Nothing has to be imported for that: an installed Tessera is known to torch by an entry point of the package. Importing
this module makes the backend known where the package's metadata does not say so.
"""

from __future__ import annotations

from tessera.integrations.torch import ops
from tessera.integrations.torch.backend import backend, register
from tessera.integrations.torch.explanation import Explanation, explain
from tessera.integrations.torch.graph import Fallback
from tessera.integrations.torch.library import custom_op
from tessera.integrations.torch.partition import BackendWarning

__all__ = ["BackendWarning", "Explanation", "Fallback", "backend", "custom_op", "explain", "ops"]

register()

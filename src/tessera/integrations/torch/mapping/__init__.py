"""What operators of ATen and of other libraries are in Tessera: a row for each overload, in the module of its theme."""

from tessera.integrations.torch.mapping import (  # noqa: F401 - each enters its rows
    attention,
    distances,
    elementwise,
    embeddings,
    generation,
    gradients,
    images,
    indexing,
    integers,
    normalization,
    products,
    reductions,
    shapes,
    special,
)
from tessera.integrations.torch.mapping.table import MAPPING, Row, Unsupported, Wanted, row_of

__all__ = ["MAPPING", "Row", "Unsupported", "Wanted", "row_of"]

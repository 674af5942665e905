"""Products that are formed together: two of one A, whose results meet in one map, as in a gated MLP.

    silu(x @ w) * (x @ v)      ->      one kernel, which reads x once and stores only what comes of both

The sums of each are formed in the order that they would have alone. Whether the machine's kernels can do so, and
whether it is faster there, is decided when extents and constants are known
(`scheduling/families/product/decompositions/apart.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xdsl.ir import SSAValue

from tessera.ir.graph.operations import GraphOperation
from tessera.ops.pins import KNOBS
from tessera.ops.record import family_of

TOGETHER: Final = 2
"""Products that one kernel forms: each has half of a register tile, whose height stays that of one product's."""


def products_of(operations: Sequence[GraphOperation]) -> list[GraphOperation]:
    """The matrix products among the operations of a kernel."""
    return [operation for operation in operations if family_of(operation.operator).is_product]


def are_joined(first: Sequence[GraphOperation], second: Sequence[GraphOperation], most: int) -> bool:
    """Whether the products of two groups over one domain may be formed in one kernel, of at most `most` of them."""
    products = [*products_of(first), *products_of(second)]
    if len(products) > most:
        return False
    made = {operation.result for operation in (*first, *second)}
    a, b = products[0].inputs[:2]
    return all(
        product.inputs[0] is a
        and product.inputs[1].type == b.type
        and product.result.type == products[0].result.type
        and _flags(product) == _flags(products[0])
        and _is_free(product)
        and made.isdisjoint(product.inputs)
        for product in products
    ) and _are_distinct([product.inputs[1] for product in products])


def _flags(product: GraphOperation) -> tuple[object, ...]:
    return tuple(product.attribute(name) for name in ("transpose_a", "math"))


def _is_free(product: GraphOperation) -> bool:
    """Whether the user left the product's schedule open: pinned knobs are meant for a kernel of its own."""
    return not product.attribute(KNOBS, "") and "tile_shape" not in product.attributes


def _are_distinct(values: Sequence[SSAValue]) -> bool:
    return len(set(values)) == len(values)

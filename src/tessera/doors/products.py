"""Matrix products: what goes beside `op.matmul` and `op.gemm`."""

from __future__ import annotations

from typing import cast

from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy.constants import constant_leaf
from tessera.lazy.conversion import as_node
from tessera.lazy.leaf import Placeholder
from tessera.lazy.node import leaf_node
from tessera.lazy.promise import settle


def constant(x: object) -> Tensor:
    """`x` as a tensor whose contents stay, the weights of a layer for example: products may keep a copy of it in the
    layout that their kernels read fastest, made at the first use and kept as long as `x` lives.

    `x` is a torch tensor, a numpy array or a Tessera tensor, which is evaluated. Views of the result (`w.T`), and
    constants made of the same tensor, share the copies. A torch tensor may be changed in place: the next evaluation
    reads the new contents. Numpy arrays are not watched: they must not change. Raises ArgumentError (E_ARGUMENT) for
    the argument of a function that is being traced.
    """
    node = cast(Tensor, as_node(x))
    leaves = node.leaves
    if any(isinstance(leaf, Placeholder) for leaf in leaves):
        raise ArgumentError(
            "constant() of an argument of a function that is being traced: its contents are not known there",
            hints=["pass op.constant(w) to the function", "or mark a tensor from around it"],
        )
    (leaf,) = node.eval().leaves
    settle((leaf,))
    return cast(Tensor, leaf_node(constant_leaf(leaf)))

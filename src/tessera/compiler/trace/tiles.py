"""Tiles that a user asks for: refused at the call where no schedule could ever have them."""

from __future__ import annotations

from functools import cache

from tessera.dtypes import DType, accumulator
from tessera.lazy.node import Node
from tessera.lazy.structures.promotion import product_dtype


def refuse_impossible(tile: tuple[int, ...] | None, first: Node, second: Node) -> None:
    """Raises TuneSpaceEmptyError (E_TUNE_SPACE_EMPTY) for a tile that no product of operands of these dtypes can have
    on this machine, whatever is fused with it. What depends on that, or on extents, is decided at evaluation.
    """
    if tile is not None:
        _refuse(tile, accumulator(product_dtype([first.structure, second.structure])))


@cache
def _refuse(tile: tuple[int, ...], dtype: DType) -> None:
    from tessera import target  # loaded, and the machine looked at, by who asks for tiles
    from tessera.scheduling.families.product.space import ContractionProblem, space

    machine = target.detect()
    machine.require_supported()
    # The most permissive product: all operands as kernels like them, one output of the accumulator's dtype.
    permissive = ContractionProblem(
        m=1,
        n=1,
        k=1,
        batch=1,
        a_dtype=dtype,
        b_dtype=dtype,
        out_dtype=dtype,
        accumulator=dtype,
        a_contiguous="k",
        b_contiguous="n",
        a_mapped=False,
        b_mapped=False,
        outputs=1,
        epilogue_operations=0,
        target=machine,
        workers=1,
        native_bf16=False,
    )
    space(permissive).restricted({"tile": [tile]})

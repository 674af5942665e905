"""Matrix products of a program over merged axes, and what they compute there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tessera.rewrite.fusion.alignment import Alignment
from tessera.scheduling.binding.arrays import (
    ArrayLayout,
    ArrayRole,
    Arrays,
    Copy,
    LayoutFacts,
    Limits,
    Pattern,
    ShapedArrays,
    Tensor,
    V,
    array_layout,
    columns_of,
    layout_facts,
    numbered,
    shaped_arrays,
)
from tessera.scheduling.binding.axes import Axes, merge_axes
from tessera.scheduling.binding.regions import Region, operation_of, read_region
from tessera.scheduling.families.product.decompositions.few_columns import is_turned, with_columns_along_k
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import Argument, ContractionSpec, Sibling

CONTIGUOUS: Final = ("n", "k", "m")
"""The axes along which code may treat an operand as contiguous, best first: each operand's inner axis comes last."""


def lay_out(
    region: Region, domain: Sequence[int], arrays: Arrays[V], limits: Limits, copied: Copy[V]
) -> tuple[Arrays[V], ShapedArrays]:
    """The arrays of a product, made as its transpose where it has few columns. Numbers of elements that are read for
    more than the result are copied into memory.
    """
    rank, loads = len(domain) - 1, len(region.loads)
    arrays = [
        (copied(tensor, None) if tensor.is_counted and any(axis == rank for axis in place) else tensor, place)
        for tensor, place in arrays
    ]
    turned = is_turned(region, domain, arrays, limits.target)
    if turned:
        arrays = with_columns_along_k(domain, arrays, loads, copied)
    return arrays, contraction_arrays(domain, arrays, loads, turned)


def contraction_arrays(domain: Sequence[int], arrays: Arrays[Tensor], loads: int, turned: bool = False) -> ShapedArrays:
    """Merges the batch dimensions of a matrix product; its last three domain dimensions are m, n and k. With `turned`
    its columns are called m and its rows n.
    """
    batch = len(domain) - 3
    if turned:
        domain = (*domain[:batch], domain[batch + 1], domain[batch], domain[-1])
        arrays = [(tensor, _exchanged(alignment, batch, batch + 1)) for tensor, alignment in arrays]
    columns = columns_of(arrays, len(domain))
    merged = merge_axes(domain[:batch], columns[:batch])
    axes = Axes(merged.extents + tuple(domain[batch:]), merged.columns + columns[batch:])
    names = numbered("b", len(merged.extents), "m", "n", "k")
    alignments = tuple([alignment for _, alignment in arrays])
    facts = layout_facts(names, axes, arrays)
    layout = _contraction_layout(facts, loads, alignments, batch, turned)
    return shaped_arrays(layout, names, axes)


def _exchanged(alignment: Alignment, one: int, other: int) -> Alignment:
    """An alignment over a domain with two dimensions exchanged."""
    return tuple([other if axis == one else one if axis == other else axis for axis in alignment])


@lru_cache(maxsize=1 << 12)
def _contraction_layout(
    facts: LayoutFacts,
    loads: int,
    alignments: tuple[Alignment, ...],
    batch: int,
    turned: bool,
) -> ArrayLayout:
    """`batch`: the number of batch dimensions before they were merged, after which m, n and k stand."""
    names, _, classes, kinds = facts
    everything, matrix = frozenset(names), dict(enumerate(names[-3:], batch))
    carried_k = any(classes[-1])
    # A first operand that an epilogue reads, too, is two arrays, of which the product's alone has a k.
    first_operand = next((index for index in range(loads) if batch + 2 in alignments[index]), 0)

    def role(index: int) -> ArrayRole:
        own = frozenset([name for place, name in matrix.items() if place in alignments[index]])
        if index >= loads:
            return ArrayRole(frozenset("mn"), everything, own, CONTIGUOUS)
        lends_k = index == first_operand and not carried_k
        return ArrayRole(frozenset("k") if lends_k else frozenset(), everything, own, CONTIGUOUS)

    def pattern(arguments: tuple[Argument, ...]) -> Pattern:
        return Pattern(arguments, names[:-3], None, "n", True, turned=turned)

    return array_layout(pattern, facts, [role(index) for index in range(len(kinds))])


def contraction_spec(region: Region, pattern: Pattern) -> ContractionSpec:
    """The specification of a matrix product with its prologues and epilogues."""
    recorder = _ContractionRecorder(pattern.outer)
    outputs = read_region(region, pattern, recorder)
    math = operation_of(region, "contraction").attribute("math")
    assert math is None or isinstance(math, str)
    assert recorder.a is not None
    first, *others = recorder.products
    a, b = (first.b, recorder.a) if pattern.turned else (recorder.a, first.b)
    return ContractionSpec(
        region.name,
        pattern.arguments,
        pattern.outer,
        a,
        b,
        first.accumulator,
        outputs,
        pattern.one_block,
        math,
        others[0] if others else None,
    )


class _ContractionRecorder(Recorder):
    """A recorder that notes the operands of the matrix product, or of two over one first operand. Reductions are along
    k: those before the product.
    """

    def __init__(self, batch: Sequence[str]) -> None:
        super().__init__("k")
        self.batch = batch
        self.a: Value | None = None
        self.products: list[Sibling] = []

    def contract(self, a: Value, b: Value) -> Value:
        """The register tile of a product."""
        assert self.a in (None, a), "products of a kernel share their first operand"
        self.a = a
        number = (len(self.products),) if self.products else ()
        sums = self.make("accumulator", (), number, a.dtype, (*self.batch, "m", "n"))
        self.products.append(Sibling(b, sums))
        return sums

"""The families of operators: what all operators of one have in common, where their records say nothing of their own.

Rewrites, fusion and layouts ask a family what they need to know; nobody asks which family it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from tessera.errors import ArgumentError
from tessera.ir.anchors import rules as anchor_rules
from tessera.ir.anchors.anchor import AnchorRule
from tessera.ir.anchors.pages import paged_attention
from tessera.ops.applications import images, maps, pages, products
from tessera.ops.applications.rule import Rule

FamilyName: TypeAlias = Literal[
    "elementwise",
    "contraction",
    "reduction",
    "row",
    "layout",
    "attention",
    "attention_gradient",
    "paged_attention",
    "convolution",
    "library",
    "window",
]

Size: TypeAlias = tuple[int, ...]
Dims: TypeAlias = tuple[str, ...]
"""The names of a value's extents."""


def _dims_of_result(operands: Sequence[Dims], result: Dims) -> Dims:
    return result


def _dims_of_means(operands: Sequence[Dims], result: Dims) -> Dims:
    """As a mean of values for each query has them."""
    return (*result[:-1], operands[2][-1])


def _dims_of_queries(operands: Sequence[Dims], result: Dims) -> Dims:
    return operands[0]


def _one_operand(size: Size) -> list[Size]:
    return [size]


def _queries_keys_values(size: Size) -> list[Size]:
    return [size] * 3


def _factors(size: Size) -> list[Size]:
    if len(size) != 3:
        raise ArgumentError(f"shapes={size!r}: a matrix product has the problem size (M, N, K)")
    m, n, k = size
    return [(m, k), (k, n)]


@dataclass(frozen=True)
class GroupKind:
    """A kind of kernels that fusion makes, which are groups of operations while it does."""

    name: str
    share: float = 0.0
    """The share that a group may have of the instructions that bound a kernel (`rewrite.depth`); with none it takes no
    other operation. Where sums stay in registers it is a half: an epilogue is compiled once for every height of a
    register tile."""
    sums_in_registers: bool = False
    """Maps of the result are epilogues, as long as nothing else needs what they read."""
    takes_siblings: bool = False
    """Several groups of the kind over one operand, whose results meet in a map, are one kernel."""
    is_walk: bool = False
    """Maps and reductions, which walk one domain: kernels of the families "row" and "column"."""
    joins: bool = False
    """Operators of one family over the same operands, under the same attributes, are one kernel of several results."""
    apart: frozenset[str] = frozenset()
    """Attributes that say of such operators which result they are."""
    is_kernel: bool = True
    """Whether the group becomes a kernel; else its operation stays as it is."""


MAP: Final = GroupKind("map", share=1.0, is_walk=True)
REDUCTION: Final = GroupKind("reduction", share=1.0, is_walk=True)
_MOVE: Final = GroupKind("layout", is_kernel=False)

GROUP_KINDS: Final[Mapping[str, GroupKind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            MAP,
            REDUCTION,
            GroupKind("contraction", share=0.5, sums_in_registers=True, takes_siblings=True),
            GroupKind("convolution", share=0.5, sums_in_registers=True),
            GroupKind("window", share=0.5, sums_in_registers=True),
            GroupKind("attention", joins=True),
            GroupKind("attention_gradient", joins=True, apart=frozenset(("place", "along"))),
            GroupKind("paged_attention"),
            _MOVE,
        )
    }
)
"""All kinds by name."""


@dataclass(frozen=True)
class OperatorFamily:
    """A family of operators.

    `group` is the kind of kernel that fusion begins with one of them.
    """

    name: str
    group: GroupKind
    anchors: AnchorRule | None = None
    """How operands and result are indexed."""
    application: Callable[[int], Rule] | None = None
    """(most operands) -> what its operators may be applied to."""
    is_map: bool = False
    """An element of the result is computed from the elements at its place."""
    is_move: bool = False
    """Elements get other places, and nothing is computed."""
    is_call: bool = False
    """A library computes the result, from tensors in memory."""
    is_product: bool = False
    """Matrices are multiplied."""
    is_several: bool = False
    """It stands for several operators, and its kernels are reported as fused ones."""
    has_images: bool = False
    """The result is an image, made by a window that walks over another."""
    is_counted: bool = False
    """Its operations are instructions of a kernel's body, beside others, and numbers stand there as they are."""
    written_by_users: bool = False
    """What a kernel does is what the tile body says, so that operators of users may be of it."""
    reduces: Literal["axes", "axis"] | None = None
    """The attribute that says along which dimensions elements meet; along an `axis` the result has the same rows."""
    prologues: int = 0
    """The operands, from the first on, whose maps are computed on the way into the kernel."""
    numbers: Set[int] = frozenset()
    """The operands that are one number each, which a kernel takes as it is."""
    beyond: tuple[tuple[int, str], ...] = ()
    """What the domain of a kernel has behind the result's dimensions, those that operands alone have: (operand, axis of
    the anchor that the dimension holds)."""
    domain: Callable[[Sequence[Dims], Dims], Dims] = _dims_of_result
    """(dimensions of the operands, those of the result) -> those of a kernel's domain, but for what is `beyond`."""
    operands_of: Callable[[Size], list[Size]] = _one_operand
    """The problem's size -> the shapes of operands. Raises ArgumentError for what is no size."""
    without_kernel: str = ""
    """Why no kernel computes the result of `{}`; empty where one does."""

    @property
    def multiplies(self) -> bool:
        """Whether sums of products are formed. The first two operands are multiplied in the dtypes that they are
        stored in, since machines multiply narrow elements faster than those of the accumulator.
        """
        return self.prologues > 0

    @property
    def has_run_time_geometry(self) -> bool:
        """Whether extents and offsets of an operation are known only where the operands are."""
        return self.is_move or self.is_call

    def rule(self, most: int) -> Rule:
        """What its operators of at most so many operands may be applied to.

        Raises LookupError for families whose operators have little in common: their records say it.
        """
        if self.application is None:
            raise LookupError(
                f"operators of the family {self.name!r} say themselves what they are applied to: `application`"
            )
        return self.application(most)


CONSTANT: Final = OperatorFamily("constant", group=MAP)
"""Literals, which have no record."""

_ALL: Final = (
    OperatorFamily(
        "elementwise",
        group=MAP,
        anchors=anchor_rules.broadcast,
        application=maps.of_maps,
        is_map=True,
        is_counted=True,
        written_by_users=True,
    ),
    OperatorFamily(
        "row",
        group=REDUCTION,
        anchors=anchor_rules.rows,
        application=lambda most: maps.of_norms(most - 1),
        is_counted=True,
        written_by_users=True,
        reduces="axis",
    ),
    OperatorFamily(
        "reduction",
        group=REDUCTION,
        anchors=anchor_rules.reduction(),
        application=lambda most: maps.of_reductions,
        is_counted=True,
        written_by_users=True,
        reduces="axes",
    ),
    OperatorFamily(
        "contraction",
        group=GROUP_KINDS["contraction"],
        anchors=anchor_rules.matrices,
        application=lambda most: products.of_products,
        is_product=True,
        prologues=2,
        beyond=((0, "k"),),
        operands_of=_factors,
    ),
    OperatorFamily(
        "convolution",
        group=GROUP_KINDS["convolution"],
        anchors=anchor_rules.convolution,
        application=lambda most: images.of_convolutions,
        has_images=True,
        prologues=1,  # weights are packed before, by what knows no expressions
        beyond=((0, "y"), (0, "x"), (0, "c"), (1, "ky"), (1, "kx"), (1, "c")),
    ),
    OperatorFamily(
        "attention",
        group=GROUP_KINDS["attention"],
        anchors=anchor_rules.attention,
        application=lambda most: products.of_attention,
        is_several=True,
        numbers=frozenset((3,)),  # the scale
        beyond=((1, "j"), (1, "d"), (1, "h")),
        domain=_dims_of_means,
        operands_of=_queries_keys_values,
    ),
    OperatorFamily(
        "attention_gradient",
        group=GROUP_KINDS["attention_gradient"],
        application=lambda most: products.of_attention_gradients,
        is_several=True,
        numbers=frozenset((6,)),  # the scale
        beyond=((1, "j"), (2, "e"), (1, "h")),
        domain=_dims_of_queries,
    ),
    OperatorFamily(
        "paged_attention",
        group=GROUP_KINDS["paged_attention"],
        anchors=paged_attention,
        application=lambda most: pages.of_paged_attention,
        numbers=frozenset((3,)),  # the scale
        beyond=((1, "j"), (1, "d"), (1, "h"), (1, "p"), (4, "t")),
    ),
    OperatorFamily(
        "window",
        group=GROUP_KINDS["window"],
        anchors=anchor_rules.window(),
        application=lambda most: images.of_windows(taps=most > 1),
        has_images=True,
        written_by_users=True,
        beyond=((0, "y"), (0, "x"), (1, "ky"), (1, "kx"), (0, "c")),
    ),
    OperatorFamily(
        "layout",
        group=_MOVE,
        is_move=True,
        without_kernel="the result of {}, which moves data, has no kernel to pin",
    ),
    OperatorFamily(
        "library",
        group=_MOVE,
        is_call=True,
        without_kernel="the result of {}, which a library computes, has no kernel to pin",
    ),
)

FAMILIES: Final[Mapping[str, OperatorFamily]] = MappingProxyType({family.name: family for family in _ALL})
"""All families by name."""

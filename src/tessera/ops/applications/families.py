"""The rule of each family: how its operators are applied where their records say nothing of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tessera.ops.applications import images, maps, products
from tessera.ops.applications.rule import Rule

_RULES: Mapping[str, Callable[[int], Rule]] = {
    "elementwise": maps.of_maps,
    "reduction": lambda most: maps.of_reductions,
    "row": lambda most: maps.of_norms(most - 1),
    "contraction": lambda most: products.of_products,
    "attention": lambda most: products.of_attention,
    "convolution": lambda most: images.of_convolutions,
    "window": lambda most: images.of_windows(taps=most > 1),
}
"""By family: the rule of an operator that takes at most so many operands."""


def family_rule(family: str, arity: tuple[int, int]) -> Rule:
    """The rule of a family's operators of an arity.

    Raises LookupError for the families "layout" and "library", whose operators have little in common: their records
    say it.
    """
    rule = _RULES.get(family)
    if rule is None:
        raise LookupError(f"operators of the family {family!r} say themselves what they are applied to: `application`")
    return rule(arity[1])

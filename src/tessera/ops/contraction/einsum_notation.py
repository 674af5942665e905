"""Einsum's notation and order of contraction: text and shapes in, labels and pairs out. Nothing here computes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.lazy.structures.structure import Shape

Labels: TypeAlias = tuple[str, ...]
"""A label for each dimension: a letter, or "...0", "...1", ... for the dimensions of an ellipsis, the last first."""

EXHAUSTIVE: Final = 7
"""Operands up to which all orders are compared; of more, the cheapest pair is contracted first, again and again."""


@dataclass(frozen=True)
class Notation:
    """An equation over operands of known ranks."""

    operands: tuple[Labels, ...]
    result: Labels


@lru_cache(maxsize=1024)
def read(equation: str, shapes: tuple[Shape, ...]) -> tuple[Notation, Mapping[str, int]]:
    """The labels of an equation over operands of these shapes, and their extents. Raises what `parse` and `extents_of`
    raise.
    """
    notation = parse(equation, shapes)
    return notation, extents_of(notation, shapes)


def parse(equation: str, shapes: Sequence[Shape]) -> Notation:
    """The labels of an equation. Raises ArgumentError (E_ARGUMENT) for what is none, or does not fit the operands."""
    text = "".join(equation.split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ArgumentError(f"einsum {equation!r}: {len(terms)} terms for {len(shapes)} operands")
    operands = tuple(_term(text, term, len(shape)) for term, shape in zip(terms, shapes, strict=True))
    dots = sorted({label for term in operands for label in term if len(label) > 1}, reverse=True)
    if arrow:
        result = _result(text, right, dots)
    else:
        counts = Counter(label for term in operands for label in term if len(label) == 1)
        result = (*dots, *sorted(label for label, count in counts.items() if count == 1))
    unknown = sorted(set(result) - {label for term in operands for label in term})
    if unknown:
        raise ArgumentError(f"einsum {equation!r}: the result's {', '.join(unknown)} stands in no operand")
    if len(set(result)) != len(result):
        raise ArgumentError(f"einsum {equation!r}: the result names a dimension twice")
    return Notation(operands, result)


def _letters(equation: str, term: str) -> tuple[str, str, str]:
    """What stands before an ellipsis, the ellipsis if there is one, and what stands after it."""
    head, dots, tail = term.partition("...")
    if any(not (letter.isascii() and letter.isalpha()) for letter in head + tail):
        raise ArgumentError(f"einsum {equation!r}: the term {term!r}", hints=["letters, and one ... at most"])
    return head, dots, tail


def _term(equation: str, term: str, rank: int) -> Labels:
    head, dots, tail = _letters(equation, term)
    rest = rank - len(head) - len(tail)
    if rest < 0 or (rest and not dots):
        raise ArgumentError(f"einsum {equation!r}: the term {term!r} for an operand of {rank} dimensions")
    return (*head, *[f"...{place}" for place in reversed(range(rest))], *tail)


def _result(equation: str, term: str, dots: Sequence[str]) -> Labels:
    head, ellipsis, tail = _letters(equation, term)
    if dots and not ellipsis:
        raise ArgumentError(f"einsum {equation!r}: the result has no ...", hints=["write ... where its dimensions go"])
    return (*head, *(dots if ellipsis else ()), *tail)


def extents_of(notation: Notation, shapes: Sequence[Shape]) -> Mapping[str, int]:
    """The extent of each label; 1 broadcasts, as in torch. Raises ShapeMismatchError where two extents differ."""
    found: dict[str, int] = {}
    for labels, shape in zip(notation.operands, shapes, strict=True):
        for label, extent in zip(labels, shape, strict=True):
            known = found.get(label, 1)
            if 1 not in (known, extent) and known != extent:
                raise ShapeMismatchError(
                    f"einsum of shapes {' and '.join(map(str, shapes))}: {label} is {known} and {extent}"
                )
            found[label] = extent if known == 1 else known
    return found


def contraction_order(operands: Sequence[Labels], result: Labels, extents: Mapping[str, int]) -> list[tuple[int, int]]:
    """Which two to contract, again and again: places in the list of what is there, to whose end the product goes.

    The order with the fewest multiplications, of few operands; that of the cheapest next pair, of many.
    """
    if len(operands) == 2:
        return [(0, 1)]
    sizes = tuple(sorted(extents.items()))
    terms = tuple(frozenset(labels) for labels in operands)
    if len(operands) <= EXHAUSTIVE:
        return list(_best(terms, frozenset(result), sizes)[1])
    order: list[tuple[int, int]] = []
    left = list(terms)
    while len(left) > 1:
        pairs = itertools.combinations(range(len(left)), 2)
        pair = min(pairs, key=lambda pair: _cost(left[pair[0]] | left[pair[1]], extents))
        order.append(pair)
        left = _after(left, pair, frozenset(result))
    return order


def _cost(labels: frozenset[str], extents: Mapping[str, int]) -> int:
    return math.prod(extents[label] for label in labels)


def _after(terms: Sequence[frozenset[str]], pair: tuple[int, int], result: frozenset[str]) -> list[frozenset[str]]:
    """What is there after two are contracted: labels that nothing else needs are summed over."""
    rest = [term for place, term in enumerate(terms) if place not in pair]
    needed = result.union(*rest)
    return [*rest, (terms[pair[0]] | terms[pair[1]]) & needed]


@lru_cache(maxsize=1024)
def _best(
    terms: tuple[frozenset[str], ...], result: frozenset[str], sizes: tuple[tuple[str, int], ...]
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The least cost, and the pairs that have it."""
    if len(terms) < 2:
        return 0, ()
    extents = dict(sizes)
    found: tuple[int, tuple[tuple[int, int], ...]] | None = None
    for pair in itertools.combinations(range(len(terms)), 2):
        own = _cost(terms[pair[0]] | terms[pair[1]], extents)
        if found is not None and own >= found[0]:
            continue
        rest, pairs = _best(tuple(_after(terms, pair, result)), result, sizes)
        if found is None or own + rest < found[0]:
            found = own + rest, (pair, *pairs)
    assert found is not None
    return found

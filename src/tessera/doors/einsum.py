"""Einstein summation: products and sums by the names of dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tessera.doors.calls.nodes import call, node, on
from tessera.dtypes import accumulator
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_operands
from tessera.ops.contraction import calls
from tessera.ops.contraction.einsum_notation import Labels, Notation, contraction_order, read
from tessera.ops.layout import views
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def einsum(equation: str, *operands: ArrayLike, stream: Stream | None = None) -> Tensor:
    """The sum of products that an equation says: "mk,kn->mn" is the matrix product, "ii->" the trace, "bij,bjk" a
    batched product whose result "bik" has the labels that stand once, in the alphabet's order.

    A label that stands twice in one operand takes its diagonal; ... stands for dimensions that broadcast; of a label's
    extents, 1 broadcasts. Products of several operands are formed two by two in the order with the fewest
    multiplications. Each is one matrix product over views of its operands, or a map where nothing is summed over, so
    that an equation costs what the same products written by hand do.

    Of integers of 8 and 16 bits the result is int32, the dtype of the sums, wherever something is multiplied or summed,
    whatever the equation; what is only put in another order keeps its dtype.

    Raises ArgumentError (E_ARGUMENT) for an equation that is none or does not fit the operands' ranks,
    ShapeMismatchError (E_SHAPE_MISMATCH) where extents differ, with all shapes.

    Shapes: those of the equation. Dtypes: floats, 8-bit floats and complex; int8, uint8, int16 and int32 give int32;
    int64 gives int64; not bools (E_DTYPE).

    >>> op.einsum("bij,bjk->bik", op.ones((2, 3, 4)), op.ones((2, 4, 5))).shape
    (2, 3, 5)
    """
    if not operands:
        raise ArgumentError("einsum of no operands")
    if not isinstance(equation, str):
        raise ArgumentError(f"einsum: an equation of type {type(equation).__name__}", hints=['text: "mk,kn->mn"'])
    values: list[Tensor] = [node(value) for value in as_operands(operands)]
    notation, extents = read(equation, tuple(value.shape for value in values))
    pairs = zip(values, notation.operands, strict=True)
    terms = [_Term(value, labels).without_repeats().without_ones(extents) for value, labels in pairs]
    return on(_contracted(terms, notation, extents).in_order(notation.result, extents), stream)


class _Term:
    """A tensor whose dimensions have labels, each once."""

    def __init__(self, value: Tensor, labels: Sequence[str]) -> None:
        self.value, self.labels = value, tuple(labels)

    def without_repeats(self) -> _Term:
        """The diagonal of labels that stand twice."""
        if len(set(self.labels)) == len(self.labels):
            return self
        term = self
        while len(set(term.labels)) < len(term.labels):
            label = next(each for each in term.labels if term.labels.count(each) > 1)
            first = term.labels.index(label)
            second = term.labels.index(label, first + 1)
            term = _diagonal(term, first, second)
        return term

    def without_ones(self, extents: Mapping[str, int]) -> _Term:
        """Without dimensions of extent 1 that broadcast."""
        kept = [place for place, label in enumerate(self.labels) if self.value.shape[place] == extents[label]]
        if len(kept) == len(self.labels):
            return self
        shape = tuple(self.value.shape[place] for place in kept)
        return _Term(views.reshape(self.value, shape), [self.labels[place] for place in kept])

    def summed(self, needed: set[str]) -> _Term:
        """The sum over the labels that nothing else needs."""
        axes = [place for place, label in enumerate(self.labels) if label not in needed]
        if not axes:
            return self
        labels = [label for label in self.labels if label in needed]
        wide = self.wide()
        return _Term(wide.value.sum(axes).to(wide.value.dtype), labels)

    def wide(self) -> _Term:
        """The term in the dtype that its products and sums have: int32 of narrower integers, as a matrix product's."""
        dtype = self.value.dtype
        return _Term(self.value.to(accumulator(dtype)), self.labels) if dtype.kind == "int" else self

    def transposed(self, labels: Sequence[str]) -> Tensor:
        """The tensor with its dimensions in the order of `labels`, which are all of its own."""
        if tuple(labels) == self.labels:
            return self.value
        made: Tensor = views.transpose(self.value, [self.labels.index(label) for label in labels])
        return made

    def matrices(self, batch: Labels, rows: Labels, columns: Labels, extents: Mapping[str, int]) -> Tensor:
        """[*batch, rows, columns], rows and columns of several labels each merged to one dimension; extents of 1 stand
        for labels of the batch that this has not.
        """
        own = [label for label in batch if label in self.labels]
        lead = tuple(extents[label] if label in own else 1 for label in batch)
        merged = (math.prod(extents[label] for label in labels) for labels in (rows, columns))
        made: Tensor = views.reshape(self.transposed((*own, *rows, *columns)), (*lead, *merged))
        return made

    def in_order(self, labels: Labels, extents: Mapping[str, int]) -> Tensor:
        """The tensor as `labels` say; those that this has not are of extent 1, or were broadcast away."""
        value = self.transposed([label for label in labels if label in self.labels])
        shape = tuple(extents[label] for label in labels)
        if len(labels) > len(self.labels):
            column = tuple(extents[label] if label in self.labels else 1 for label in labels)
            value = views.broadcast_to(views.reshape(value, column), shape)
        return value


def _diagonal(term: _Term, first: int, second: int) -> _Term:
    """Elements at equal places of two dimensions: each extent + 1st of both as one."""
    rank, extent = len(term.labels), term.value.shape[first]
    if term.value.shape[second] != extent:
        raise ArgumentError(f"einsum: the diagonal of extents {extent} and {term.value.shape[second]}")
    others = [place for place in range(rank) if place not in (first, second)]
    turned: Tensor = views.transpose(term.value, [*others, first, second])
    flat: Tensor = views.reshape(turned, (*turned.shape[:-2], extent * extent))
    value: Tensor = views.indexed(flat, (Ellipsis, slice(None, None, extent + 1)))
    return _Term(value, [*[term.labels[place] for place in others], term.labels[first]])


def _contracted(terms: Sequence[_Term], notation: Notation, extents: Mapping[str, int]) -> _Term:
    """All terms as one. What one of them alone sums over is summed first."""
    left = []
    for place, term in enumerate(terms):
        others = [other.labels for other_place, other in enumerate(terms) if other_place != place]
        left.append(term.summed(set(notation.result).union(*others)))
    for first, second in contraction_order([term.labels for term in left], notation.result, extents):
        rest = [term for place, term in enumerate(left) if place not in (first, second)]
        needed = set(notation.result).union(*[term.labels for term in rest])
        left = [*rest, _product(left[first], left[second], needed, notation.result, extents)]
    return left[0].summed(set(notation.result))


def _product(a: _Term, b: _Term, needed: set[str], result: Labels, extents: Mapping[str, int]) -> _Term:
    """Two terms as one, summed over the labels that nothing else needs."""
    shared = [label for label in a.labels if label in b.labels]
    batch = tuple(sorted((label for label in shared if label in needed), key=_place_in(result)))
    inner = tuple(label for label in shared if label not in needed)
    rows = tuple(sorted((label for label in a.labels if label not in shared), key=_place_in(result)))
    columns = tuple(sorted((label for label in b.labels if label not in shared), key=_place_in(result)))
    if not inner or not (rows or columns):
        labels = tuple(sorted({*a.labels, *b.labels}, key=_place_in((*result, *inner))))
        factors = [_spread(term.wide(), labels) for term in (a, b)]
        return _Term(call("mul", *factors), labels).summed(needed)
    if rows and columns and min(map(_place_in(result), columns)) < min(map(_place_in(result), rows)):
        a, b, rows, columns = b, a, columns, rows
    left, right = a.matrices(batch, rows, inner, extents), b.matrices(batch, inner, columns, extents)
    labels = (*batch, *rows, *columns)
    shape = tuple(extents[label] for label in labels)
    return _Term(views.reshape(calls.matmul(left, right), shape), labels)


def _place_in(result: Labels) -> Callable[[str], tuple[int, str]]:
    """What labels are sorted by: their place in the result, and those that are not there after all others."""
    return lambda label: (result.index(label) if label in result else len(result), label)


def _spread(term: _Term, labels: Labels) -> Tensor:
    """The term over more dimensions, of extent 1 where it has none."""
    value = term.transposed([label for label in labels if label in term.labels])
    sizes = dict(zip([label for label in labels if label in term.labels], value.shape, strict=True))
    made: Tensor = views.reshape(value, tuple(sizes.get(label, 1) for label in labels))
    return made

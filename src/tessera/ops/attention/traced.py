"""From functions of scores and positions, as users write them, to the steps of `scoring.py`.

    score_mod(score, batch, head, query, key)  -> another score
    mask_mod(batch, head, query, key)          -> whether the query sees the key

A function is called once, with tensors: the score is a placeholder, positions are int32 counts of the shapes
[batch, 1, 1, 1], [heads, 1, 1], [queries, 1] and [keys], so that tensors which the function holds may be indexed by
them. Elementwise operators of the score, of positions, or of whole matrices of scores become steps, and all else an
operand beside the score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tessera.dtypes import DType, bool_, int32
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node
from tessera.lazy.structures import interning
from tessera.lazy.structures.promotion import broadcast_shape
from tessera.lazy.structures.structure import Occurrence, Shape, contiguous_strides
from tessera.ops.algebra import call
from tessera.ops.attention.scoring import SCORE, ScoreRecording, Scoring
from tessera.ops.record import OPERATORS
from tessera.ops.reverse import nodes_of

N: TypeAlias = Any
Function: TypeAlias = Callable[..., Any]


def positions(scores: Shape) -> tuple[N, N, N, N]:
    """Batch, head, query and key of every score, each of which broadcasts to the scores' shape."""
    rank = len(scores)
    lead, heads = scores[:-3], scores[-3:-2]
    shapes = (*lead, *(1,) * min(rank, 3)), (*heads, 1, 1), (scores[-2], 1), (scores[-1],)
    counts = [call("cast", call("iota", shape=shape), dtype=int32) for shape in shapes]
    return counts[0], counts[1], counts[2], counts[3]


def placeholder(shape: Shape, dtype: DType, device: str | None) -> Leaf:
    """What stands for the scores while a function is traced."""
    return Placeholder(interning.buffer(shape, contiguous_strides(shape), dtype, device or CPU))


def scoring_of(result: Node, score: Leaf) -> tuple[Scoring, list[N]]:
    """The steps from the leaf `score` to a result that broadcasts to it, and what they need beside it.

    Raises ArgumentError (E_ARGUMENT) where what is made of a score depends on other scores, ShapeMismatchError
    (E_SHAPE_MISMATCH) where it does not broadcast.
    """
    if broadcast_shape([result.state[0].shape, score.shape]) != score.shape:
        raise ShapeMismatchError(
            f"scores have the shape {score.shape}, what a function made of them {result.state[0].shape}",
            hints=["index what the function holds by the positions that it is given"],
        )
    structure, leaves = result.state
    return _Reading(structure.post_order(), leaves, score).read()


class _Reading:
    """The expression of a score, told apart into steps and operands."""

    def __init__(self, order: Sequence[Occurrence], leaves: Sequence[Leaf], score: Leaf) -> None:
        self.order, self.leaves, self.score = order, leaves, score
        self.nodes = nodes_of(order, leaves)
        self.of_score: list[bool] = []
        self.of_counts: list[bool] = []
        for structure, operands, leaf in order:
            here = leaf is not None and leaves[leaf] is score
            self.of_score.append(here or any(self.of_score[operand] for operand in operands))
            free = leaf is None or structure.kind == "scalar"
            self.of_counts.append(free and all(self.of_counts[operand] for operand in operands))
        self.recording = ScoreRecording()
        self.extras: dict[int, int] = {}

    def read(self) -> tuple[Scoring, list[N]]:
        last = self._number(len(self.order) - 1)
        steps = self.recording.ending_in(last, self.score.dtype)
        return steps, [self.nodes[index] for index in self.extras]

    def _is_step(self, index: int) -> bool:
        """Whether kernels compute this for each score: what depends on one or on positions alone, and matrices."""
        structure, _, leaf = self.order[index]
        if leaf is not None or structure.operator is None or not OPERATORS[structure.operator.name].kind.is_map:
            return False
        is_matrix = len(structure.shape) > 1 and structure.shape[-1] > 1 < structure.shape[-2]
        return self.of_score[index] or self.of_counts[index] or is_matrix

    def _number(self, root: int) -> int:
        """The number of an occurrence among steps and operands; the walk has a stack of its own, as chains are long."""
        known: dict[int, int] = {}
        stack = [root]
        while stack:
            index = stack[-1]
            structure, operands, leaf = self.order[index]
            if leaf is not None and self.leaves[leaf] is self.score:
                known[index] = SCORE
            elif structure.kind == "constant":
                assert structure.value is not None
                known[index] = self.recording.constant(structure.value, structure.dtype)
            elif not self._is_step(index):
                known[index] = self._extra(index)
            elif missing := [operand for operand in operands if operand not in known]:
                stack += missing
                continue
            else:
                assert structure.operator is not None
                places = [known[operand] for operand in operands]
                attributes = structure.named_attributes
                known[index] = self.recording.step(structure.operator.name, places, attributes, structure.dtype)
            stack.pop()
        return known[root]

    def _extra(self, index: int) -> int:
        structure = self.order[index].structure
        if self.of_score[index]:
            name = structure.operator.name if structure.operator is not None else structure.kind
            raise ArgumentError(
                f"{name} makes of a score what depends on other scores, or gives it another place",
                hints=["a score_mod is an elementwise function of the score; positions tell where it stands"],
            )
        return self.extras.setdefault(index, 1 + len(self.extras))


def checked_score(value: object) -> N:
    """What a score_mod gave. Raises ArgumentError (E_ARGUMENT) for what is no real tensor."""
    if isinstance(value, Node) and value.dtype.kind != "complex":
        return value
    raise ArgumentError(
        f"score_mod gave {value!r}", hints=["score_mod(score, batch, head, query, key) gives another score"]
    )


def checked_mask(value: object) -> N:
    """What a mask_mod gave. Raises ArgumentError (E_ARGUMENT) for what is no tensor of bools."""
    if isinstance(value, Node) and value.dtype is bool_:
        return value
    raise ArgumentError(
        f"mask_mod gave {value!r}", hints=["mask_mod(batch, head, query, key) gives bools: true is seen"]
    )

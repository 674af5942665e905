"""Tracing a stage of a pipeline: its results and the cotangents that are wanted, over placeholders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from tessera.compiler.trace.randomness import undrawn
from tessera.doors.cotangents import pulled_back
from tessera.doors.flow.bodies import flattened, rebuilt
from tessera.errors import ArgumentError, DTypeError, PipelineError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.layouts import Layout
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure
from tessera.sharding.pipeline.borders import Border, StagePlaceholder, crossing_of
from tessera.sharding.pipeline.cutting import Values
from tessera.sharding.pipeline.gathering import gathered_layouts
from tessera.sharding.pipeline.stages import StagePrograms, StageTrace
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.shards import shards_of

Stage = Callable[..., Any]


class StageArguments(NamedTuple):
    """What a stage is traced with: its weights as a tree of tensors, the structures of what it reads, which is a tuple
    or a single tensor, and those of targets, a tree of structures each.
    """

    weights: Any
    reads: Sequence[Structure]
    is_tuple: bool
    targets: Sequence[Any]


def weights_of(tree: Any, mesh: Mesh, number: int, axis: str) -> list[Leaf]:
    """The leaves of a stage's weights, which are evaluated. Raises PipelineError (E_PIPELINE) for weights that lie on
    another mesh than the stage's.
    """
    leaves = []
    for tensor in flattened(tree):
        if not isinstance(tensor, Tensor):
            raise ArgumentError(
                f"a {type(tensor).__name__} among the weights of stage {number}", hints=["make it op.tensor(x)"]
            )
        leaf = tensor.eval().state[1][0]
        if leaf.structure.layout is not None and shards_of(leaf).mesh != mesh:
            raise PipelineError(
                f"weights of stage {number} on {shards_of(leaf).mesh!r} of devices {list(shards_of(leaf).mesh.devices)}"
                f"; its ranks are {list(mesh.devices)}",
                hints=[f'they lie on the part of the mesh at the place of the stage: mesh["{axis}", {number}]'],
            )
        leaves.append(leaf)
    return leaves


class TracedStage:
    """A stage as programs. `border` is what it hands on; the last stage, which has a `loss`, hands on nothing. With
    `gathers` its programs read weights that they would all bring together as `gathered` says: the layout of each that
    is to be brought together before, None of the others.

    Raises DTypeError (E_DTYPE) for a stage of whose results none is a floating-point tensor, ShapeMismatchError
    (E_SHAPE_MISMATCH) for a loss of several elements, PipelineError (E_PIPELINE) for what is no tensor.
    """

    def __init__(
        self,
        stage: Stage,
        number: int,
        arguments: StageArguments,
        mesh: Mesh,
        loss: Stage | None,
        *,
        split: bool,
        gathers: bool,
    ) -> None:
        self._stage, self._number, self._arguments = stage, number, arguments
        self._mesh, self._loss, self._split = mesh, loss, split
        self._reads = [_argument(structure, mesh) for structure in arguments.reads]
        self._targets = [_argument(each, mesh) for tree in arguments.targets for each in flattened(tree)]
        self._weights = [_argument(tensor.state[0], mesh) for tensor in flattened(arguments.weights)]
        self.border: Border | None = None
        self.beside: Values = {}
        """What replaces leaves of the expressions that are no arguments."""
        self._laid = tuple(leaf.structure.layout for leaf in _leaves(_floats(self._weights)))
        self._use(*self._called())
        self.gathered: tuple[Layout | None, ...] = (None,) * len(self._weights)
        if gathers:
            self._gather()

    def _gather(self) -> None:
        """Has the programs read weights that are brought together before, where all of them would do it."""
        trace = self.programs.trace
        found = gathered_layouts([*trace.results, *trace.to_inputs, *trace.to_parameters], trace.parameters)
        self.gathered = tuple(found.get(leaf) for leaf in trace.parameters)
        if found:
            self._weights = [
                weight if laid is None else _argument(interning.sharded(weight.shape, weight.dtype, laid), self._mesh)
                for weight, laid in zip(self._weights, self.gathered, strict=True)
            ]
            self._use(*self._called())

    def again(self) -> None:
        """Calls the stage again, for what it reads beside its arguments: numbers and tensors that may be others now.

        Raises PipelineError (E_PIPELINE) where it hands on something else than before.
        """
        results, is_tuple = self._called()
        replaced = replaced_leaves(self._results, results, self._given())
        if replaced is not None:
            self.beside = replaced
            return
        before = self.border
        self._use(results, is_tuple)
        if self.border != before:
            raise PipelineError(
                f"stage {self._number} hands on other tensors than in the step before, for a batch of the same shape",
                hints=["the stage behind it does not know them: make another dist.pipeline(...)"],
            )

    def _called(self) -> tuple[list[Tensor], bool]:
        given = tuple(self._reads) if self._arguments.is_tuple else self._reads[0]
        with undrawn():
            made = self._stage(rebuilt(self._arguments.weights, self._weights), given)
            if self._loss is not None:
                left = list(self._targets)
                targets = self._arguments.targets
                made = self._loss(made, *[rebuilt(tree, [left.pop(0) for _ in flattened(tree)]) for tree in targets])
        results = list(made) if isinstance(made, tuple | list) else [made]
        if not results or not all(isinstance(each, Tensor) for each in results):
            raise PipelineError(
                f"stage {self._number} gives {made!r}", hints=["a stage gives a tensor, or a tuple of tensors"]
            )
        return results, isinstance(made, tuple | list)

    def _use(self, results: list[Tensor], is_tuple: bool) -> None:
        self._results = results
        self.beside = {}
        if self._loss is not None:
            trace = _last(results, self._reads, self._targets, self._weights, self._number)
        else:
            trace, self.border = _inner(results, self._reads, self._weights, self._number, self._mesh, is_tuple)
        self.programs = StagePrograms(trace, self._laid, split=self._split)

    def _given(self) -> set[Leaf]:
        return {*_leaves(self._reads), *_leaves(self._targets), *_leaves(self._weights)}


def replaced_leaves(before: Sequence[Tensor], after: Sequence[Tensor], given: Collection[Leaf]) -> Values | None:
    """The leaves that stand in the second expressions where others stood in the first, but for those that are `given`
    in both; None where the expressions differ in more than that.
    """
    found: dict[Leaf, Leaf] = {}
    if len(before) != len(after):
        return None
    for one, other in zip(before, after, strict=True):
        (structure, leaves), (now, others) = one.state, other.state
        if structure is not now:
            return None
        for old, new in zip(leaves, others, strict=True):
            if (old in given or new in given) and old is not new:
                return None
            if found.setdefault(old, new) is not new:
                return None
    same = len(set(found.values())) == len(found)
    return {old: new for old, new in found.items() if old not in given} if same else None


def _argument(structure: Structure, mesh: Mesh) -> Tensor:
    made: Tensor = leaf_node(StagePlaceholder(structure, mesh))
    return made


def _last(
    results: list[Tensor], reads: list[Tensor], targets: list[Tensor], weights: list[Tensor], number: int
) -> StageTrace:
    (value, *others) = results
    if others or value.size != 1:
        shapes = ", ".join(str(each.shape) for each in results)
        raise ShapeMismatchError(f"a loss of shape {shapes}", hints=["reduce it: op.mean(...)"])
    return _trace([value], [None], (), reads, targets, weights, number)


def _inner(
    results: list[Tensor], reads: list[Tensor], weights: list[Tensor], number: int, mesh: Mesh, is_tuple: bool
) -> tuple[StageTrace, Border]:
    # What lies as is said here: the next rank relies on it.
    laid = [each if each.layout is None else each.reshard(each.layout) for each in results]
    border = Border(tuple(crossing_of(each.state[0], each.layout) for each in laid), is_tuple)
    if not border.cotangents:
        raise DTypeError(
            f"stage {number} gives no floating-point tensor", hints=["gradients go back through what a stage gives"]
        )
    seeds = [_argument(each.structure, mesh) for each in border.cotangents]
    return _trace(laid, seeds, _leaves(seeds), reads, [], weights, number), border


def _trace(
    results: list[Tensor],
    seeds: Sequence[object],
    seed_leaves: tuple[Leaf, ...],
    reads: list[Tensor],
    targets: list[Tensor],
    weights: list[Tensor],
    number: int,
) -> StageTrace:
    wanted = _floats(reads) if number else []
    learned = _floats(weights)
    outputs = _floats(results)
    if not outputs:
        raise DTypeError(f"a loss of {results[0].dtype}", hints=["gradients are of floating-point tensors"])
    cotangents = pulled_back(outputs, [*wanted, *learned], seeds)
    return StageTrace(
        (*_leaves(reads), *_leaves(targets)),
        _leaves(weights),
        seed_leaves,
        tuple(results),
        tuple(cotangents[: len(wanted)]),
        tuple(cotangents[len(wanted) :]),
    )


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.dtype.kind == "float"]


def _leaves(tensors: Sequence[Tensor]) -> tuple[Leaf, ...]:
    return tuple(tensor.state[1][0] for tensor in tensors)

"""`@op.kernel`: a Python function of tensors, traced into one expression and compiled as a whole.

The function runs once per structure of its arguments (dtypes, ranks, static strides). For other extents the recorded
expression is applied to the new arguments; only a function that reads extents, or gives them to a layout operator, is
run again. Compiling is lazy: it happens when a result is evaluated.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from tessera.dtypes import bool_ as bool_dtype
from tessera.dtypes import fp32, fp64, int64
from tessera.errors import ArgumentError, MissingArgumentError
from tessera.lazy import node as nodes
from tessera.lazy import structure as structures
from tessera.lazy.building import apply
from tessera.lazy.conversion import as_node
from tessera.lazy.leaf import Leaf, Placeholder, scalar_leaf
from tessera.lazy.node import Node
from tessera.lazy.occurrences import Occurrence
from tessera.lazy.sources import from_plain_torch
from tessera.lazy.structure import Structure
from tessera.lazy.symbolic import SymbolicForm, symbolic_form

_TORCH_TENSOR = torch.Tensor


class Absent:
    """A trailing operand that the caller left out: `x + absent` is `x`, any other use is E_MISSING_ARGUMENT."""

    def __init__(self, function: str, name: str) -> None:
        self._function, self._name = function, name

    def __add__(self, other: object) -> object:
        return other

    __radd__ = __add__

    def _refuse(self, *_: object) -> NoReturn:
        raise MissingArgumentError(
            f"{self._function} was called without {self._name!r}, which it uses for more than adding it",
            hints=[f"pass {self._name}", "a left-out operand may only be added: x + absent is x"],
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = _refuse
    __pow__ = __rpow__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __iter__ = _refuse
    __getitem__ = __len__ = __float__ = __int__ = _refuse


@dataclass(frozen=True)
class _Result:
    """One traced result: its structure, and which argument each of its leaves is."""

    structure: Structure
    order: tuple[int, ...]
    constants: tuple[Leaf | None, ...]

    @functools.cached_property
    def nodes(self) -> tuple[Occurrence, ...]:
        """The structure's nodes in post-order, for replays."""
        return tuple(self.structure.post_order())

    def leaves(self, arguments: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """The leaves for a call; literals of the function's own body are kept from the trace."""
        return tuple(
            own if own is not None else arguments[index] for index, own in zip(self.order, self.constants, strict=True)
        )


@dataclass(frozen=True)
class _Trace:
    results: tuple[_Result, ...]
    single: bool
    shape_dependent: bool
    direct: Structure | None
    """The structure of a single result whose leaves are the arguments in their order: the common case."""


def _traced(results: tuple[_Result, ...], arguments: int, single: bool, shape_dependent: bool) -> _Trace:
    direct = single and results[0].order == tuple(range(arguments)) and not any(results[0].constants)
    return _Trace(results, single, shape_dependent, results[0].structure if direct else None)


@dataclass(frozen=True)
class Compilation:
    """One compiled kernel of a traced function, and why it had to be compiled."""

    kernel: str
    reason: str
    schedule: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.kernel}({self.arguments}): {self.reason}; {self.schedule}"


@dataclass
class _Signatures:
    """What a traced function has been called with."""

    exact: dict[tuple[Any, ...], _Trace] = field(default_factory=dict)
    symbolic: dict[tuple[Any, ...], _Trace] = field(default_factory=dict)
    forms: dict[SymbolicForm, str] = field(default_factory=dict)


class TracedFunction:
    """A function decorated with `@op.kernel`. Calling it gives lazy tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name = function.__name__
        self._parameters = inspect.signature(function).parameters
        self._lock = threading.RLock()
        self._known = _Signatures()
        self._last: _Trace | None = None

    # -- calls ----------------------------------------------------------------------------------------------------

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Applies the function. Operands are torch tensors, arrays, Tessera tensors or Python numbers.

        A trailing operand that is left out is *absent*; see `Absent`. Raises what operators raise, at the caller's
        line.
        """
        if keywords:
            arguments = self._positional(arguments, keywords)
        leaves: list[Leaf] = []
        exact: list[Structure] = []
        for argument in arguments:
            # By type, as isinstance of a torch tensor costs as much as the rest of this line.
            if type(argument) is _TORCH_TENSOR:
                leaf = from_plain_torch(argument)
            elif isinstance(argument, Node) and not argument.is_pending:
                leaf = argument.state[1][0]
            else:
                return self._call_general(arguments)
            leaves.append(leaf)
            exact.append(leaf.structure)
        trace = self._known.exact.get(tuple(exact))
        if trace is None:
            trace = self._trace_for(leaves)
        if trace.direct is not None:
            return nodes.make((trace.direct, tuple(leaves)))
        return _made(trace, leaves)

    def _call_general(self, arguments: Sequence[Any]) -> Any:
        """A call with numbers or pending tensors among its arguments."""
        operands = [self._operand(argument, arguments) for argument in arguments]
        if not any(node.is_pending for node in operands):
            leaves = [node.state[1][0] for node in operands]
            trace = self._known.exact.get(tuple([leaf.structure for leaf in leaves]))
            return _made(trace if trace is not None else self._trace_for(leaves), leaves)
        stand_ins: list[Leaf] = []
        for node in operands:
            if node.is_pending:
                strides = structures.contiguous_strides(node.structure.shape)
                stand_ins.append(Placeholder(structures.buffer(node.structure.shape, strides, node.dtype)))
            else:
                stand_ins.append(node.state[1][0])
        trace = self._trace_for(stand_ins)
        results = [_applied(result.nodes, _operands_of(result, operands)) for result in trace.results]
        return results[0] if trace.single else tuple(results)

    def _operand(self, argument: Any, arguments: Sequence[Any]) -> Node:
        if isinstance(argument, bool | int | float):
            wide = any(getattr(other, "dtype", None) in (torch.float64, fp64) for other in arguments)
            kinds = {bool: bool_dtype, int: int64}
            leaf = scalar_leaf(argument, kinds.get(type(argument), fp64 if wide else fp32))
            return Node((leaf.structure, (leaf,)))
        node = as_node(argument)
        assert isinstance(node, Node)
        return node

    def _positional(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        names = list(self._parameters)
        values = dict(zip(names, arguments, strict=False))
        for name, value in keywords.items():
            if name not in self._parameters or name in values:
                raise ArgumentError(
                    f"{self._name}() has no free parameter {name!r}", hints=[f"its operands are {', '.join(names)}"]
                )
            values[name] = value
        given = [name for name in names if name in values]
        if given != names[: len(given)]:
            raise MissingArgumentError(f"{self._name}() was called without an operand before {given[-1]!r}")
        return tuple(values[name] for name in given)

    # -- tracing --------------------------------------------------------------------------------------------------

    def _trace_for(self, leaves: Sequence[Leaf]) -> _Trace:
        exact = tuple([leaf.structure for leaf in leaves])
        with self._lock:
            trace = self._known.exact.get(exact)
            if trace is not None:
                return trace
            rough = tuple([_rough(structure) for structure in exact])
            pattern = self._known.symbolic.get(rough)
            if pattern is None or pattern.shape_dependent:
                trace = self._run(exact)
                self._known.symbolic[rough] = trace
            else:
                trace = _replayed(pattern, exact)
            self._known.exact[exact] = self._last = trace
            for result in trace.results:
                form = symbolic_form(result.structure)
                if form not in self._known.forms:
                    self._known.forms[form] = self._reason(rough, pattern)
            return trace

    def _reason(self, rough: tuple[Any, ...], pattern: _Trace | None) -> str:
        described = ", ".join(_describe(part) for part in rough)
        if len(self._known.symbolic) == 1 and len(self._known.forms) == 0:
            return f"first call, with {described}"
        return (
            f"new dtypes, ranks or strides: {described}"
            if pattern is None
            else f"an extent of 1 is static: {described}"
        )

    def _run(self, exact: tuple[Structure, ...]) -> _Trace:
        """Runs the function on placeholders."""
        holders = [Placeholder(structure) for structure in exact]
        operands: list[Any] = [nodes.leaf_node(holder) for holder in holders]
        names = list(self._parameters)
        required = len(operands)
        if required > len(names):
            raise ArgumentError(f"{self._name}() takes {len(names)} operands, not {required}")
        for name in names[required:]:
            default = self._parameters[name].default
            operands.append(Absent(self._name, name) if default is inspect.Parameter.empty else default)
        with _shape_reads() as reads:
            returned = self._function(*operands)
        single = not isinstance(returned, tuple | list)
        outputs = [returned] if single else list(returned)
        for output in outputs:
            if not isinstance(output, Node):
                raise ArgumentError(
                    f"{self._name}() returned a {type(output).__name__}",
                    hints=["return a tensor, or a tuple of tensors"],
                )
        place: dict[Leaf, int] = {holder: index for index, holder in enumerate(holders)}
        results = tuple(
            _Result(
                output.structure,
                tuple(place.get(leaf, -1) for leaf in output.leaves),
                tuple(None if leaf in place else leaf for leaf in output.leaves),
            )
            for output in outputs
        )
        dependent = bool(reads) or any(_holds_extents(result.structure) for result in results)
        return _traced(results, len(exact), single, dependent)

    # -- introspection --------------------------------------------------------------------------------------------

    @property
    def forms(self) -> dict[SymbolicForm, str]:
        """The symbolic forms traced so far, with the reason of each."""
        return dict(self._known.forms)

    @property
    def last_structure(self) -> Structure:
        """The structure of the last call's first result. Raises MissingArgumentError before the first call."""
        if self._last is None:
            raise MissingArgumentError(
                f"{self._name} has not been called yet", hints=["call it once with its operands"]
            )
        return self._last.results[0].structure

    def inspect(self, level: str) -> str:
        """The text of a level ("graph", "schedule", "tile" or "target") for the last call."""
        from tessera.compiler.inspection import inspect_structure  # xdsl is loaded when it is needed

        return inspect_structure(self.last_structure, level)

    @property
    def schedule(self) -> Any:
        """The schedule of the last call's first kernel."""
        from tessera.compiler.inspection import schedules_of

        return schedules_of(self.last_structure)[0]

    def compilations(self) -> list[Compilation]:
        """The kernels compiled for this function so far, each once, and why."""
        from tessera.compiler.inspection import compilations_of

        return [Compilation(*row) for row in compilations_of(self._known.forms)]

    def __repr__(self) -> str:
        return f"<tessera kernel {self._name}({', '.join(self._parameters)})>"


def kernel(function: Callable[..., Any]) -> TracedFunction:
    """Makes a function of tensors a kernel; see `TracedFunction`."""
    return TracedFunction(function)


def _made(trace: _Trace, leaves: Sequence[Leaf]) -> Any:
    if trace.single:
        (result,) = trace.results
        return nodes.make((result.structure, result.leaves(leaves)))
    return tuple([nodes.make((result.structure, result.leaves(leaves))) for result in trace.results])


def _operands_of(result: _Result, operands: Sequence[Node]) -> list[Node]:
    """The nodes that stand for the leaves of a traced result."""
    return [
        operands[index] if own is None else Node((own.structure, (own,)))
        for index, own in zip(result.order, result.constants, strict=True)
    ]


def _replayed(pattern: _Trace, exact: tuple[Structure, ...]) -> _Trace:
    """The trace over arguments of other extents, without running the function."""
    holders = [Placeholder(structure) for structure in exact]
    place: dict[Leaf, int] = {holder: index for index, holder in enumerate(holders)}
    operands = [Node((holder.structure, (holder,))) for holder in holders]
    results = []
    for result in pattern.results:
        node = _applied(result.nodes, _operands_of(result, operands))
        results.append(
            _Result(
                node.structure,
                tuple(place.get(leaf, -1) for leaf in node.leaves),
                tuple(None if leaf in place else leaf for leaf in node.leaves),
            )
        )
    return _traced(tuple(results), len(exact), pattern.single, pattern.shape_dependent)


def _applied(order: Sequence[Occurrence], leaves: Sequence[Node]) -> Any:
    """Applies the algebra of a structure, given by its post-order, to other operands; shape rules run again."""
    made: list[Any] = []
    for occurrence in order:
        made.append(_apply_one(occurrence, made, leaves))
    return made[-1]


def _apply_one(occurrence: Occurrence, made: Sequence[Any], leaves: Sequence[Node]) -> Any:
    structure = occurrence.structure
    if occurrence.leaf is not None:
        return leaves[occurrence.leaf]
    if structure.operator is None:
        return Node((structure, ()))
    return apply(structure.operator, structure.attributes, [made[index] for index in occurrence.operands])


def _holds_extents(structure: Structure) -> bool:
    """Whether an attribute anywhere below holds extents, which another call would have to change."""
    return any(
        node.structure.operator is not None
        and node.structure.attributes
        and node.structure.operator.symbolic_attributes(
            node.structure.attributes, node.structure.operands, node.structure.shape
        )
        != node.structure.attributes
        for node in structure.post_order()
    )


def _rough(structure: Structure) -> tuple[Any, ...]:
    """What decides whether a trace can be used for other extents: kind, dtype, rank, and where an extent is 1."""
    ones = tuple([extent == 1 for extent in structure.shape])
    strides = tuple([stride if stride in (0, 1) else None for stride in structure.strides])
    return structure.kind, structure.dtype, ones, strides


def _describe(rough: tuple[Any, ...]) -> str:
    kind, dtype, ones, strides = rough
    if kind == "scalar":
        return f"{dtype} number"
    dims = "x".join("1" if one else "?" for one in ones)
    return f"{dtype}[{dims}] strides {['?' if s is None else s for s in strides]}"


@contextmanager
def _shape_reads() -> Iterator[list[bool]]:
    """Collects whether this thread reads a tensor's shape meanwhile."""
    reads: list[bool] = []
    thread = threading.get_ident()
    before = nodes.shape_watchers.get(thread)
    nodes.shape_watchers[thread] = lambda: reads.append(True)
    try:
        yield reads
    finally:
        if before is None:
            del nodes.shape_watchers[thread]
        else:
            nodes.shape_watchers[thread] = before

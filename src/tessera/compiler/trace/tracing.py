"""`@op.kernel`: a Python function of tensors, traced into one expression and compiled as a whole.

The function runs once per structure of its operands (dtypes, ranks, static strides) and per value of its flags. For
other extents the recorded expression is applied to the new operands; only a function that reads extents, or gives them
to a layout operator, is run again, and one whose surroundings may have changed (`surroundings`). Compiling is lazy: it
happens when a result is evaluated, and never twice for the same expression, however often the function runs.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, Self

import torch
from typing_extensions import ParamSpec, TypeVar

from tessera.compiler.entry import prepared
from tessera.compiler.trace.arguments import described, key_of, parts_of
from tessera.compiler.trace.limits import Beyond, CompilationLimit
from tessera.compiler.trace.parameters import Parameters, Receiver
from tessera.compiler.trace.signatures import Signature, compare, describe, signature_of
from tessera.compiler.trace.surroundings import Surroundings
from tessera.compiler.trace.traces import FunctionTrace, Key, trace
from tessera.dtypes import dtype_of
from tessera.errors import ArgumentError, MissingArgumentError
from tessera.lazy import node as nodes
from tessera.lazy.devices import CPU, check_device
from tessera.lazy.issuing import issue_all
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_plain_torch
from tessera.lazy.node import Node
from tessera.lazy.structures.structure import Structure
from tessera.lazy.structures.symbolic import SymbolicForm, symbolic_form
from tessera.system import forks
from tessera.system.notebooks import ShownText

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)

_TORCH_TENSOR = torch.Tensor
_default_dtype = torch.get_default_dtype


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
class _Known:
    """What a function has been traced for, while its surroundings are the same."""

    surroundings: Surroundings | None = None
    exact: dict[Key, FunctionTrace] = field(default_factory=dict)
    by_signature: dict[Signature, FunctionTrace] = field(default_factory=dict)


class TracedFunction(Generic[P, R]):
    """A function decorated with `@op.kernel`. Calling it gives lazy tensors.

    Operands are torch tensors, arrays, Tessera tensors and Python numbers; flags, None and text the function may branch
    on. What it reads beside them (variables around it, globals, defaults) is taken as it is at the call: a function is
    run again after a tensor among it was written to or a name was bound anew, and at every call if it reads other
    objects, as a method does from `self`. Raises ArgumentError (E_ARGUMENT) for what is no function of a fixed number
    of operands.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self._parameters = Parameters.of(function)
        functools.update_wrapper(self, function)
        self._function = function
        self._owner: type | None = None
        """The class whose method this is."""
        self._lock = forks.recursive_lock()
        self._known = _Known()
        self._default_dtype = torch.get_default_dtype()
        """What numbers meant to torch when the traces were made."""
        self._settled: dict[Key, FunctionTrace] = {}
        """The traces that are valid whatever happens around the function; a call looks here first."""
        self._signatures: dict[Signature, None] = {}
        self._forms: dict[SymbolicForm, str] = {}
        self._last: FunctionTrace | None = None
        self._limit: CompilationLimit | None = None
        self.on_trace: Callable[[Structure], None] | None = None
        """Told of each new expression that the function gave, before anything of it is compiled."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The method of an object, as for functions."""
        return self if instance is None else MethodType(self, Receiver(instance))

    # -- copies ---------------------------------------------------------------------------------------------------

    def __reduce__(self) -> str:
        """A reference by qualified name, as of functions. Raises ArgumentError where that does not lead here."""
        path = str(getattr(self, "__qualname__", "?"))
        try:
            found = operator.attrgetter(path)(sys.modules.get(self.__module__))
        except AttributeError:
            found = None
        if found is not self:
            raise ArgumentError(
                f"the kernel {self.__module__}.{path} cannot be pickled: that name does not lead to it",
                hints=["kernels are pickled by reference, as functions are: define it at the top of a module"],
            )
        return path

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    # -- calls ----------------------------------------------------------------------------------------------------

    def _apply(self, *arguments: Any, **keywords: Any) -> Any:
        """Applies the function.

        A trailing operand that is left out and has no default is *absent*; see `Absent`. With `stream=` all results are
        computed on that stream, as one piece of work. Raises what operators raise, at the caller's line.
        """
        if keywords:
            if "stream" in keywords and not self._parameters.has("stream"):
                return self._call_on(keywords.pop("stream"), arguments, keywords)
            arguments = self._parameters.bind(arguments, keywords)
        if _default_dtype() is not self._default_dtype:
            self._forget()
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
        key = tuple(exact)
        traced = self._settled.get(key)
        if traced is None:
            traced = self._trace_for(key)
        if traced.direct is not None:
            return nodes.make((traced.direct, tuple(leaves)))
        return traced.make(leaves)

    if TYPE_CHECKING:

        def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
            """As `_apply`. What a program's checker sees: the function's own parameters and result."""
            raise NotImplementedError

    else:
        __call__ = _apply  # the same function: a call of a small kernel has no time for another one

    def _call_on(self, stream: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        made = self._apply(*arguments, **keywords)
        if stream is not None:
            issue_all([made] if isinstance(made, Node) else made, stream)
        return made

    def _call_general(self, arguments: Sequence[Any]) -> Any:
        """A call with numbers, arrays, flags or pending tensors among its arguments."""
        parts = parts_of(self._received(arguments))
        operands = [part for part in parts if isinstance(part, Node)]
        key = key_of(parts)
        if not any(node.is_pending for node in operands):
            return (self._settled.get(key) or self._trace_for(key)).make([node.state[1][0] for node in operands])
        return self._trace_for(key).apply(operands)

    def _received(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The arguments, the first as the object whose method is called where it is one: Class.method(instance, ...)"""
        if self._owner is not None and arguments and isinstance(arguments[0], self._owner):
            return Receiver(arguments[0]), *arguments[1:]
        return arguments

    # -- serving --------------------------------------------------------------------------------------------------

    def warmup(self, calls: Iterable[Sequence[Any]], *, dtype: object = "fp32", device: object = CPU) -> None:
        """Compiles what calls need before they come: `layer.warmup([[(1, 64), w], [(32, 64), w]])`.

        A call is the list of its arguments; a tuple of extents stands for a contiguous tensor of `dtype` on `device`.
        Where there are several results, compiled is what each takes alone, and all together.

        Raises what a call raises.
        """
        for key in self._keys(calls, dtype, device):
            for structure in self._trace_for(key).roots(key):
                prepared(structure)

    def limit_compilations(self, most: int | None, beyond: Beyond = "error") -> None:
        """From now on at most `most` kernels are compiled for calls: one that needs more raises CompilationLimitError
        (E_COMPILATION_LIMIT), before anything is compiled, or warns (`beyond="warn"`). None takes the limit away.

        Raises ArgumentError (E_ARGUMENT) for what is no number of kernels.
        """
        self._limit = None if most is None else CompilationLimit(most, beyond)
        self._forget()  # so that calls that were only traced so far are looked at

    def export(
        self,
        path: str | os.PathLike[str],
        calls: Iterable[Sequence[Any]] | None = None,
        *,
        dtype: object = "fp32",
    ) -> None:
        """Writes the kernel as machine code for this CPU into a file, which `tessera.load_kernel` runs without the
        function, a compiler or a cache: for these calls, given as to `warmup`, else for those that there have been.

        Raises ArtefactError (E_ARTEFACT) where there are no calls, and for what no file can hold.
        """
        from tessera.compiler.trace.writing import write  # the compiler is loaded when it is needed

        with self._lock:
            keys = list(self._known.exact) if calls is None else self._keys(calls, dtype, CPU)
            write(Path(path), self._parameters, [(key, self._trace_for(key)) for key in keys])

    def _keys(self, calls: Iterable[Sequence[Any]], dtype: object, device: object) -> list[Key]:
        element, place = dtype_of(dtype), check_device(device)
        return [key_of(parts_of(self._received(described(call, element, place)))) for call in calls]

    # -- tracing --------------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drops the traces made under another default dtype of torch, by which results of integers are typed."""
        with self._lock:
            self._default_dtype = _default_dtype()
            self._known, self._settled = _Known(), {}

    def _trace_for(self, key: Key) -> FunctionTrace:
        with self._lock:
            known = self._known
            changed = known.surroundings is not None and known.surroundings.changed()
            if changed:
                known = self._known = _Known()
                self._settled = {}
            traced = known.exact.get(key)
            if traced is None:
                traced = self._new_trace(known, key, changed)
            self._last = traced
            return traced

    def _new_trace(self, known: _Known, key: Key, changed: bool) -> FunctionTrace:
        signature = signature_of(key)
        pattern = known.by_signature.get(signature)
        if pattern is None or pattern.shape_dependent:
            before, _running.kernel = getattr(_running, "kernel", None), self
            try:
                traced = trace(self._function, self._parameters, key)
            finally:
                _running.kernel = before
            # After each run: what the function itself changed, such as a count of its runs, is no reason for another.
            surroundings = known.surroundings = Surroundings(self._function)
            self._settled = known.exact if surroundings.settled else {}
        else:
            traced = pattern.replayed(key)
        reason = self._reason(key, signature, pattern, changed)
        self._check_limit(traced, reason)
        if not any(isinstance(part, Receiver) for part in key):
            known.exact[key] = known.by_signature[signature] = traced
        if self.on_trace is not None:
            self.on_trace(traced.results[0].structure)
        self._signatures[signature] = None
        for result in traced.results:
            self._forms.setdefault(symbolic_form(result.structure), reason)
        return traced

    def _check_limit(self, traced: FunctionTrace, reason: str) -> None:
        """Raises CompilationLimitError where evaluating the results would compile more than the limit says."""
        if self._limit is None:
            return
        from tessera.compiler.explain.inspection import missing_kernels

        computed = [result.structure for result in traced.results if result.is_computed]
        if all(symbolic_form(structure) in self._forms for structure in computed):
            reason = "these extents take another schedule or memory layout"
        self._limit.admit(self._parameters.function, missing_kernels(computed), reason)

    def _reason(self, key: Key, signature: Signature, pattern: FunctionTrace | None, changed: bool) -> str:
        """Why a call may need kernels that earlier ones did not."""
        if not self._signatures:
            return f"first call, with {describe(signature)}"
        if signature not in self._signatures:
            return compare(signature, list(self._signatures))
        if changed or pattern is None:
            return f"what the function reads beside its operands has changed: {describe(signature)}"
        if pattern.shape_dependent:
            shapes = ", ".join(str(list(part.shape)) for part in key if isinstance(part, Structure) and part.shape)
            return f"the function reads extents, and these give another expression: {shapes}"
        return f"an extent of 1 inside the expression is static: {describe(signature)}"

    # -- introspection --------------------------------------------------------------------------------------------

    @property
    def forms(self) -> dict[SymbolicForm, str]:
        """The symbolic forms traced so far, with the reason of each."""
        return dict(self._forms)

    @property
    def last_structure(self) -> Structure:
        """The structure of the last call's first result. Raises MissingArgumentError before the first call."""
        if self._last is None:
            raise MissingArgumentError(
                f"{self._parameters.function} has not been called yet", hints=["call it once with its operands"]
            )
        return self._last.results[0].structure

    def inspect(self, level: str) -> ShownText:
        """The text of a level ("graph", "schedule", "tile" or "target") for the last call."""
        from tessera.compiler.explain.inspection import inspect_structure  # xdsl is loaded when it is needed

        return ShownText(inspect_structure(self.last_structure, level))

    @property
    def schedule(self) -> Any:
        """The schedule of the last call's first kernel."""
        from tessera.compiler.explain.inspection import schedules_of

        return schedules_of(self.last_structure)[0]

    def compilations(self) -> list[Compilation]:
        """The kernels compiled for this function so far, each once, and why."""
        from tessera.compiler.explain.inspection import compilations_of

        return [Compilation(*row) for row in compilations_of(self._forms)]

    def __repr__(self) -> str:
        return f"<tessera kernel {self._parameters.function}({self._parameters})>"


_running = threading.local()
_latest: list[weakref.ref[TracedFunction]] = []


def subject() -> TracedFunction | None:
    """The kernel that is being traced, else the one that was defined last; None where there is none."""
    running = getattr(_running, "kernel", None)
    if running is not None:
        assert isinstance(running, TracedFunction)
        return running
    return _latest[0]() if _latest else None


def kernel(function: Callable[P, R]) -> TracedFunction[P, R]:
    """Makes a function of tensors a kernel; see `TracedFunction`. Kernels of Tessera's own are made without this, as
    they are nobody's subject.
    """
    made = TracedFunction(function)
    _latest[:] = [weakref.ref(made)]
    return made

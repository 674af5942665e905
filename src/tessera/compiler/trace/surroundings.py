"""What a function reads beside its arguments: variables of enclosing scopes, globals and defaults.

A trace is valid as long as they are what they were when the function had run. Names are watched for being bound anew,
torch tensors also for being written to or given other memory, lists, dictionaries and sets for what they hold. Helper
functions are followed. Of all other objects (models, arrays, `self`) it is not known what a function reads, so such a
function runs at every call.
"""

from __future__ import annotations

import dis
import enum
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache, partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final

import torch

from tessera.dtypes import DType
from tessera.lazy.node import Node

_IMMUTABLE: Final = (
    *(bool, int, float, complex, str, bytes, range, slice, type(None), type(...), enum.Enum),
    *(DType, torch.dtype, torch.device, torch.Size, BuiltinFunctionType, Node),
)
_CONTAINERS: Final = frozenset((tuple, list, dict, set, frozenset))
_LIBRARIES: Final = frozenset((*sys.stdlib_module_names, "tessera", "torch", "numpy"))
"""Modules whose functions are taken to read nothing that changes."""


class Surroundings:
    """What one function reads beside its arguments, as it is when this is made."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.opaque = False
        """Whether something is among it whose changes cannot be seen."""
        self._names: list[tuple[Callable[[], object], object]] = []
        self._states: list[tuple[Callable[[], tuple[object, ...]], tuple[object, ...]]] = []
        self._followed: set[int] = set()
        self._kept: list[object] = []
        """What is told apart by its id, which is free again once an object is gone."""
        self._follow(function)

    @property
    def settled(self) -> bool:
        """Whether there is nothing that could change."""
        return not (self.opaque or self._names or self._states)

    def changed(self) -> bool:
        """Whether something is not, or may not be, what it was."""
        if self.opaque:
            return True
        # On the path of a call: a generator would take as long as what it does here.
        for read, value in self._names:
            if read() is not value:
                return True
        return bool(self._states) and any(state() != value for state, value in self._states)

    def _follow(self, function: object) -> None:
        """Notes what a function reads. A kernel is followed to the function that it was made of."""
        if not isinstance(function, FunctionType):
            function = getattr(function, "__wrapped__", None)
        if not isinstance(function, FunctionType):
            self.opaque = True
            return
        if id(function) in self._followed:
            return
        self._followed.add(id(function))
        names, attributes = _read_names(function.__code__)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._note(default, attributes)
        for cell in function.__closure__ or ():
            self._watch(partial(_content, cell), attributes)
        self._watch_names(function.__globals__, names, attributes)

    def _watch_names(self, namespace: Mapping[str, object], names: Set[str], attributes: Set[str]) -> None:
        for name in names & namespace.keys():
            self._watch(partial(namespace.get, name, _UNBOUND), attributes)

    def _watch(self, read: Callable[[], object], attributes: Set[str]) -> None:
        value = read()
        if isinstance(value, ModuleType | type):
            # Nobody rebinds the name of a module; what is read from one is what may change.
            if not _is_library(value.__name__ if isinstance(value, ModuleType) else value.__module__):
                self._follow_namespace(value, attributes)
            return
        self._names.append((read, value))
        self._note(value, attributes)

    def _follow_namespace(self, value: ModuleType | type, attributes: Set[str]) -> None:
        if id(value) not in self._followed:
            self._followed.add(id(value))
            self._watch_names(vars(value), attributes, attributes)

    def _note(self, value: object, attributes: Set[str]) -> None:
        """Notes what may change about a value without its name being bound anew."""
        if type(value) in _CONTAINERS:
            self._note_container(value, attributes)
        elif type(value) is torch.Tensor or type(value) is torch.nn.Parameter:
            try:
                self._states.append((partial(_state, value), _state(value)))
            except RuntimeError:  # inference tensors have no version, sparse ones no address
                self.opaque = True
        elif isinstance(value, _IMMUTABLE) or value is _UNBOUND:
            pass
        elif not _is_library(str(getattr(value, "__module__", None))):
            self._follow(value)
        elif not isinstance(value, FunctionType):
            self.opaque = True

    def _note_container(self, container: Any, attributes: Set[str]) -> None:
        if id(container) in self._followed:
            return
        self._followed.add(id(container))
        elements = [*container, *container.values()] if isinstance(container, dict) else list(container)
        if not isinstance(container, tuple | frozenset):
            self._states.append((partial(_elements, container), _elements(container)))
            self._kept += elements
        for element in elements:
            self._note(element, attributes)


_UNBOUND: Final = object()


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return _UNBOUND


def _elements(container: Any) -> tuple[object, ...]:
    """What a container holds, each by identity, which is what makes a difference to who reads it."""
    if isinstance(container, dict):
        return (*map(id, container), *map(id, container.values()))
    return tuple(map(id, container))


def _state(tensor: torch.Tensor) -> tuple[object, ...]:
    """What differs when a tensor was written to, moved to other memory or reshaped in place, or may no longer be
    read.
    """
    detached = tensor.requires_grad and torch.is_grad_enabled()
    return tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride(), detached


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


@lru_cache(maxsize=4096)
def _read_names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names that code reads as globals, and as attributes of anything; functions defined in it included."""
    names: set[str] = set()
    attributes: set[str] = set()
    for part in _codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(instruction.argval)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                attributes.add(instruction.argval)
    return frozenset(names), frozenset(attributes)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)

"""The parameters of a traced function: what a call may give, in which order, and what stands in for what it leaves out.

Arguments are *operands* (tensors and numbers: they become leaves), or *static*: flags, None and text, which the
function may branch on, and for each of which it is traced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tessera.errors import ArgumentError, MissingArgumentError
from tessera.lazy.node import Node
from tessera.lazy.structures.structure import Structure
from tessera.ops.record import family_of

_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_STAR: Final = "*"
"""Stands between the parameters that have a place and those that are given by name only, as in a signature."""


@dataclass(frozen=True)
class Static:
    """An argument that is part of the signature: a bool, None or a text."""

    value: bool | str | None

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, eq=False)
class Receiver:
    """The object whose method is called."""

    instance: object

    def __str__(self) -> str:
        return f"a {type(self.instance).__name__}"

    def __reduce__(self) -> tuple[Any, ...]:
        # A method is pickled as an attribute of its object: getattr of what this gives makes it again.
        return _itself, (self.instance,)


def _itself(instance: object) -> object:
    return instance


class LeftOut:
    """Stands for an argument that is left out before one that is given."""

    def __str__(self) -> str:
        return "left out"


LEFT_OUT: Final = LeftOut()

Fixed = Static | Receiver | LeftOut
"""What a call gives that is no operand."""


def fixed(argument: object) -> Fixed | None:
    """The argument as something that is no operand; None for operands."""
    if argument is None or isinstance(argument, bool | str):
        return Static(argument)
    return argument if isinstance(argument, Receiver | LeftOut) else None


class Absent:
    """A trailing operand that the caller left out: added to a product, or to maps of one, it is nothing, as
    C of `A @ B + C`. Any other use is E_MISSING_ARGUMENT.
    """

    def __init__(self, function: str, name: str) -> None:
        self._function, self._name, self._is_added = function, name, False

    def __add__(self, other: object) -> object:
        if not isinstance(other, Node) or not _is_of_product(other.structure):
            self.refuse()
        self._is_added = True
        return other

    __radd__ = __add__

    def refuse_unless_added(self) -> None:
        """Raises MissingArgumentError (E_MISSING_ARGUMENT) where no product got it as a term."""
        if not self._is_added:
            self.refuse()

    def refuse(self, *_: object) -> NoReturn:
        """Raises MissingArgumentError (E_MISSING_ARGUMENT)."""
        raise MissingArgumentError(
            f"{self._function} was called without {self._name!r}, which is more than a term that + adds to a product",
            hints=[f"pass {self._name}", f"an operand that may be missing gets a default: {self._name}=None"],
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = refuse
    __pow__ = __rpow__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __iter__ = refuse
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __and__ = __rand__ = __or__ = __ror__ = __invert__ = refuse
    __getitem__ = __len__ = __float__ = __int__ = __eq__ = __ne__ = refuse
    __hash__ = object.__hash__


def _is_of_product(structure: Structure) -> bool:
    """Whether an expression is a product, or maps and layouts of one: what is added there is its epilogue's."""
    operator = structure.operator
    if operator is None:
        return False
    family = family_of(operator.name)
    if family.multiplies:
        return True
    return (family.is_map or family.is_move) and any(map(_is_of_product, structure.operands))


class Parameters:
    """The signature of a function that is to be traced.

    Raises ArgumentError (E_ARGUMENT) for a function of any number of operands.
    """

    def __init__(self, function: str, parameters: Mapping[str, inspect.Parameter]) -> None:
        self.function = function
        for parameter in parameters.values():
            if parameter.kind in _MANY:
                raise ArgumentError(
                    f"{self.function}() takes {_MANY[parameter.kind]}{parameter.name}: a kernel has a fixed number of "
                    "operands",
                    hints=["name each operand; one that may be missing gets a default, for example bias=None"],
                )
        self._parameters = parameters
        placed = [name for name, parameter in parameters.items() if parameter.kind in _BY_PLACE]
        by_name = [name for name in parameters if name not in placed]
        self.places = len(placed)
        """How many arguments may be given without their name."""
        self._slots = (*placed, *([_STAR, *by_name] if by_name else []))

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters:
        """Those of a function. Raises ArgumentError (E_ARGUMENT) for what is none."""
        _refuse_non_functions(function)
        name = getattr(function, "__name__", type(function).__name__)
        try:
            return cls(name, inspect.signature(function).parameters)
        except (TypeError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(f"{name} has no signature", hints=["wrap it: op.kernel(lambda x: ...)"]) from error

    def plain(self) -> list[list[Any]]:
        """Names, kinds, and whether there is a default, as JSON."""
        empty = inspect.Parameter.empty
        return [[name, each.kind.name, each.default is not empty] for name, each in self._parameters.items()]

    @classmethod
    def from_plain(cls, function: str, plain: Sequence[Sequence[Any]]) -> Parameters:
        """What `plain` has told of, without the values of defaults."""
        kinds = {kind.name: kind for kind in (*_BY_PLACE, inspect.Parameter.KEYWORD_ONLY)}
        return cls(
            function,
            {
                name: inspect.Parameter(name, kinds[kind], default=None if has else inspect.Parameter.empty)
                for name, kind, has in plain
            },
        )

    def bind(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments in the order of the parameters, up to the last one given; LEFT_OUT for those before it.

        Raises ArgumentError for names that are unknown or taken, MissingArgumentError (E_MISSING_ARGUMENT) where an
        operand without a default is left out before one that is given.
        """
        self.refuse_too_many(arguments)
        values = dict(zip(self._slots, arguments, strict=False))
        for name, value in keywords.items():
            parameter = self._parameters.get(name)
            if parameter is None or name in values or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise ArgumentError(f"{self.function}() has no free parameter {name!r}", hints=[self._listed()])
            values[name] = value
        last = max(self._slots.index(name) for name in values)
        for name in self._slots[:last]:
            if name not in values and name != _STAR and self._parameters[name].default is inspect.Parameter.empty:
                raise MissingArgumentError(
                    f"{self.function}() was called without {name!r}, which stands before {self._slots[last]!r}",
                    hints=[f"pass {name}"],
                )
        return tuple([values.get(name, LEFT_OUT) for name in self._slots[: last + 1]])

    def has(self, name: str) -> bool:
        """Whether there is a parameter of that name."""
        return name in self._parameters

    def refuse_too_many(self, arguments: Sequence[Any]) -> None:
        """Raises ArgumentError for more arguments without a name than there are places."""
        count = len(arguments)
        if count > self.places and arguments[self.places] is not LEFT_OUT:
            raise ArgumentError(f"{self.function}() takes {self.places} operands, not {count}", hints=[self._listed()])

    def complete(self, given: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """What to call the function with: `given`, in the order of `bind`, then defaults and `Absent` operands."""
        self.refuse_too_many(given)
        values = dict(zip(self._slots, given, strict=False))
        complete = {}
        for name, parameter in self._parameters.items():
            value = values.get(name, LEFT_OUT)
            if value is LEFT_OUT:
                value = parameter.default
            complete[name] = Absent(self.function, name) if value is inspect.Parameter.empty else value
        return [complete.pop(name) for name in self._slots[: self.places]], complete

    def _listed(self) -> str:
        return f"its operands are {', '.join(self._slots)}"

    def __str__(self) -> str:
        return ", ".join(self._slots)


def _refuse_non_functions(function: object) -> None:
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise ArgumentError(f"op.kernel of a {kind}", hints=[f"write @{kind} above @op.kernel"])
    if isinstance(function, type):
        raise ArgumentError(f"op.kernel of the class {function.__name__}", hints=["decorate its methods"])
    if not callable(function):
        raise ArgumentError(
            f"op.kernel takes a function, not a {type(function).__name__}",
            hints=["write @op.kernel above a function of tensors, or op.kernel(lambda x: ...)"],
        )

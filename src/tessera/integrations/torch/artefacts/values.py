"""Arguments of torch's operators and calls as JSON, and back."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import torch

from tessera.errors import ArtefactError
from tessera.integrations.torch.graphs.calls import NodeOperand, TorchCall
from tessera.integrations.torch.graphs.execution import ResultSlot

_KINDS: Final[dict[str, type]] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in (
        (operator, "add sub mul floordiv truediv mod neg pow getitem eq ne lt le gt ge and_ or_ not_".split()),
        (math, "floor ceil trunc".split()),
        (torch, "sym_max sym_min sym_int sym_float sym_not sym_ite".split()),
    )
    for name in names
}
"""Functions of numbers that graphs call beside torch's operators."""


def plain(value: Any) -> Any:
    """A value as JSON. Raises ArtefactError for what is none of those that operators take."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, NodeOperand):
        return {"operand": value.place}
    if isinstance(value, ResultSlot):
        return {"slot": value.number}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, slice):
        return {"slice": [plain(value.start), plain(value.stop), plain(value.step)]}
    for kind, python_type in _KINDS.items():
        if isinstance(value, python_type):
            return {kind: str(value).removeprefix("torch.")}
    raise ArtefactError(f"an argument of type {type(value).__name__} cannot be written down")


def value_of(given: Any) -> Any:
    """The value that `plain` has told of."""
    if isinstance(given, list):
        return [value_of(each) for each in given]
    if not isinstance(given, dict):
        return given
    ((kind, content),) = given.items()
    if kind in _KINDS:
        return getattr(torch, content)
    return _MAKERS[kind](content)


_MAKERS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": float,
    "operand": NodeOperand,
    "slot": ResultSlot,
    "device": torch.device,
    "slice": lambda ends: slice(*map(value_of, ends)),
}


def plain_call(call: TorchCall) -> dict[str, Any]:
    """A call as JSON. Raises ArtefactError for a function that another process cannot find by its name."""
    function: Any = call.function
    if isinstance(function, torch._ops.OpOverload):
        name = str(function)
    else:
        name = next((name for name, known in _FUNCTIONS.items() if known is function), "")
    if not name:
        raise ArtefactError(f"a call of {function}, which is no operator of torch")
    options = {option: plain(value) for option, value in call.options.items()}
    return {"function": name, "arguments": plain(call.arguments), "options": options}


def call_of(given: dict[str, Any]) -> TorchCall:
    """The call that `plain_call` has told of. Raises ArtefactError where this process has no such operator."""
    options = {option: value_of(value) for option, value in given["options"].items()}
    return TorchCall(_function(given["function"]), value_of(given["arguments"]), options)


def _function(name: str) -> Callable[..., Any]:
    known = _FUNCTIONS.get(name)
    if known is not None:
        return known
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise ArtefactError(
            f"the program calls {name}, which torch does not have here",
            hints=["import the package that registers the operator before the artefact is loaded"],
        )
    return found

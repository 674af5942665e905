"""What torch's functions answer that are given a Tessera tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tessera.errors import ArgumentError, TorchFunctionError
from tessera.ops.record import OPERATORS

_IN_PLACE: Final = re.compile(r"[a-z_]*[a-z]_|__i(and|or|xor)__")
"""Names of torch's methods that write to their tensor: `x += y` calls `add_`."""

_REFLECTED: Final = {
    "add": "__radd__",
    "sub": "__rsub__",
    "rsub": "__sub__",
    "mul": "__rmul__",
    "div": "__rtruediv__",
    "truediv": "__rtruediv__",
    "true_divide": "__rtruediv__",
    "pow": "__rpow__",
    "matmul": "__rmatmul__",
    "eq": "__eq__",
    "ne": "__ne__",
    "lt": "__gt__",
    "le": "__ge__",
    "gt": "__lt__",
    "ge": "__le__",
    "and": "__rand__",
    "or": "__ror__",
}
"""The method of the second operand that gives what torch's operator would."""


def answered(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, kind: type) -> Any:
    """The result of an operator between a torch tensor and one of ours, which are of a `kind`. Raises
    TorchFunctionError (E_TORCH_FUNCTION) for all other functions, which take torch tensors only, and ArgumentError for
    those that write to their tensor.
    """
    name = getattr(func, "__name__", str(func))
    reflected = _REFLECTED.get(name.removeprefix("__").removesuffix("__"))
    if reflected is not None and len(args) == 2 and not kwargs and not isinstance(args[0], kind):
        return getattr(args[1], reflected)(args[0])
    if _IN_PLACE.fullmatch(name):
        # Not a TypeError: torch would make NotImplemented of it, and Python an addition that is not in place.
        raise ArgumentError(
            f"torch's {name}: a torch tensor is not updated in place by a Tessera tensor",
            hints=["pass tensor.torch()", "or make a new tensor: x = x + y"],
        )
    named = [f"or use op.{name}"] if name in OPERATORS else []
    raise TorchFunctionError(f"torch's {name} was given a Tessera tensor", hints=["pass tensor.torch()", *named])

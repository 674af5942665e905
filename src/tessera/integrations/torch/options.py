"""The options of `torch.compile(model, backend="tessera", options={...})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from tessera.errors import ArgumentError

Fallback = Literal["eager", "error"]
Numerics = Literal["default", "deterministic", "strict"]
Cold = Literal["compile", "eager"]
Random = Literal["generator", "torch", "philox"]


@dataclass(frozen=True)
class CompileOptions:
    """What a user may say of a compilation. Raises ArgumentError for values that there are not."""

    fallback: Fallback = "eager"
    """What becomes of operators without a counterpart: torch computes them, or they are an error."""
    freeze: bool = True
    """Whether parameters are constants in inference: packed once, and again when torch counts a write to them."""
    numerics: Numerics = "default"
    """The policy under which plans are made: that of the thread, or one of its own."""
    reinplace: bool = True
    """Whether partitions write to the memory of inputs what the program writes there; else torch copies it."""
    most_partitions: int | None = None
    """An error where a graph needs more partitions."""
    cold: Cold = "compile"
    """What happens in calls with shapes that are new: they wait until a partition is compiled, or torch computes it
    meanwhile.
    """

    random: Random = "generator"
    """Where the random numbers of dropout come from: torch's generator, number by number; eager torch's own kernel, so
    that a seed gives the mask that it gives there; or a seed of torch's generator, of which kernels make the numbers.
    """

    def __post_init__(self) -> None:
        for name, kind in (("fallback", Fallback), ("numerics", Numerics), ("cold", Cold), ("random", Random)):
            choices = get_args(kind)
            if getattr(self, name) not in choices:
                raise ArgumentError(
                    f"options: {name}={getattr(self, name)!r}", hints=[f"one of {', '.join(map(repr, choices))}"]
                )
        for name in ("freeze", "reinplace"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"options: {name}={getattr(self, name)!r}", hints=["True or False"])
        most: object = self.most_partitions
        if most is not None and (not isinstance(most, int) or most < 0):
            raise ArgumentError(f"options: most_partitions={most!r}", hints=["a number of partitions, or None"])


def options_of(given: Mapping[str, object] | None) -> CompileOptions:
    """The options that a dictionary names. Raises ArgumentError (E_ARGUMENT) for unknown names and values."""
    known = [field.name for field in fields(CompileOptions)]
    unknown = sorted(set(given or ()) - set(known))
    if unknown:
        raise ArgumentError(f"options: {', '.join(map(repr, unknown))}", hints=[f"there are {', '.join(known)}"])
    return CompileOptions(**(given or {}))  # type: ignore[arg-type]  # __post_init__ looks at values

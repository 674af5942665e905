"""The options of `torch.compile(model, backend="tessera", options={...})`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from tessera.errors import ArgumentError
from tessera.lazy import policy

Fallback = Literal["eager", "error"]
Numerics = Literal["default", "deterministic", "strict"]
Cold = Literal["compile", "eager"]
Random = Literal["generator", "torch", "philox"]
Math = Literal["exact", "tf32"]
Tune = Literal["cached", "on_device"]

MODES: Final[Mapping[str, Tune]] = {
    "default": "cached",
    "reduce-overhead": "cached",  # a partition is one native call as it is
    "max-autotune": "on_device",
    "max-autotune-no-cudagraphs": "on_device",
}
"""What the modes of `torch.compile(..., mode=...)` are as the option `tune`."""


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

    math: Math = "exact"
    """Whether fp32 matrix products may round their operands to tf32 where the hardware has it."""
    tune: Tune | float = "cached"
    """Which schedules kernels have: those that were found before; or, before a partition runs for the first time with
    inputs of some shapes, its kernels are measured, each within the tuner's budget or all within so many seconds.
    """

    def __post_init__(self) -> None:
        for name, kind in (
            ("fallback", Fallback),
            ("numerics", Numerics),
            ("cold", Cold),
            ("random", Random),
            ("math", Math),
        ):
            choices = get_args(kind)
            if getattr(self, name) not in choices:
                remedies = _REMEDIES.get((name, getattr(self, name)), [])
                raise ArgumentError(
                    f"options: {name}={getattr(self, name)!r}",
                    hints=[f"one of {', '.join(map(repr, choices))}", *remedies],
                )
        self._check_tune()
        if self.math == "tf32" and self.numerics == "strict":
            raise ArgumentError("options: math='tf32' with numerics='strict'", hints=["numerics='deterministic'"])
        for name in ("freeze", "reinplace"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"options: {name}={getattr(self, name)!r}", hints=["True or False"])
        most: object = self.most_partitions
        if most is not None and (not isinstance(most, int) or most < 0):
            raise ArgumentError(f"options: most_partitions={most!r}", hints=["a number of partitions, or None"])

    def _check_tune(self) -> None:
        tune: object = self.tune
        is_budget = isinstance(tune, int | float) and not isinstance(tune, bool) and 0 < tune < float("inf")
        if is_budget or tune in get_args(Tune):
            return
        remedies = _REMEDIES.get(("tune", tune), []) if isinstance(tune, str) else []
        raise ArgumentError(
            f"options: tune={tune!r}", hints=["'cached', 'on_device', or a positive number of seconds", *remedies]
        )

    @property
    def own_policy(self) -> bool:
        """Whether plans are made under another numerics policy than that of the calling thread."""
        return self.numerics != "default" or self.math != "exact"

    def in_force(self) -> AbstractContextManager[object]:
        """The block in which plans are made and run. Raises ArgumentError where the thread's policy is "strict", which
        has no tf32.
        """
        if not self.own_policy:
            return nullcontext()
        mode = policy.current_policy().mode if self.numerics == "default" else self.numerics
        return policy.policy(mode, tf32=self.math == "tf32")


_REMEDIES: Final[Mapping[tuple[str, object], list[str]]] = {
    ("math", "bf16"): ['products of bf16: with torch.autocast("cpu", torch.bfloat16): model(x)'],
    ("tune", "off"): ["without winners: TESSERA_TUNE_SHIPPED=0, and TESSERA_CACHE_DIR of an empty folder"],
}
"""What users can do instead that ask for what there is not."""


def options_of(given: Mapping[str, object] | None, mode: str | None = None) -> CompileOptions:
    """The options that a dictionary names; `mode`, one of torch's, says `tune` where that does not. Raises
    ArgumentError (E_ARGUMENT) for unknown names and values.
    """
    if mode is not None and mode not in MODES:
        raise ArgumentError(f"mode={mode!r}", hints=[f"one of {', '.join(map(repr, MODES))}"])
    known = [field.name for field in fields(CompileOptions)]
    unknown = sorted(set(given or ()) - set(known))
    if unknown:
        raise ArgumentError(f"options: {', '.join(map(repr, unknown))}", hints=[f"there are {', '.join(known)}"])
    chosen = {**({} if mode is None else {"tune": MODES[mode]}), **(given or {})}
    return CompileOptions(**chosen)  # type: ignore[arg-type]  # __post_init__ looks at values

"""Passes over modules, and pipelines of them that are written as text: `cse,verify,fuse{depth=2}`.

A pass is a frozen dataclass; its fields are its options. Pipelines find passes in a table from name to "module:Class",
so that the rooms above add theirs without being imported before they run.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.utils.arg_spec import ArgSpec, ArgSpecConvertible, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from tessera.errors import ArgumentError, IRError, TesseraError
from tessera.ir.refusal import RefusalError
from tessera.ir.verification import verify


@dataclass(frozen=True)
class Pass(ArgSpecConvertible):
    """A transformation of a module, in place. Options are int, float, bool, str, tuples of these, or None."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, module: ModuleOp) -> None:
        """Transforms `module`, which is sound before and after. Raises a `TesseraError` where it cannot, or a
        `RefusalError` about one operation.
        """


@dataclass(frozen=True)
class VerifyPass(Pass):
    """Checks every operation's rules, structure and dominance; raises `IRError`."""

    name: ClassVar[str] = "verify"

    def apply(self, module: ModuleOp) -> None:
        verify(module)


@dataclass(frozen=True)
class StripNamesPass(Pass):
    """Forgets the names of values, so that modules that differ in nothing else print alike.

    Before: `%total = arith.addf %x, %y : f32`, after: `%0 = arith.addf %1, %2 : f32`.
    """

    name: ClassVar[str] = "strip-names"

    def apply(self, module: ModuleOp) -> None:
        for op in module.walk():
            _strip_names(op)


def _strip_names(op: Operation) -> None:
    for result in op.results:
        result.name_hint = None
    for region in op.regions:
        for block in region.blocks:
            for argument in block.args:
                argument.name_hint = None


IR_PASSES: Mapping[str, str] = {
    VerifyPass.name: f"{__name__}:{VerifyPass.__name__}",
    StripNamesPass.name: f"{__name__}:{StripNamesPass.__name__}",
    "function-to-kernel": "tessera.ir.tile.fragments:FunctionToKernelPass",
}
"""The passes of this room: name -> "module:Class"."""


@dataclass(frozen=True)
class PassPipeline:
    """Passes in order. `str(pipeline)` is the text that `parse` reads."""

    passes: tuple[Pass, ...]

    @classmethod
    def parse(cls, text: str, table: Mapping[str, str] = IR_PASSES) -> Self:
        """The pipeline that `text` describes: names separated by commas, options as `name{option=1 other=2,3}`.

        Raises `ArgumentError` for a pass that is not in `table`, and for options that a pass does not have.
        """
        try:
            specs = list(parse_pipeline(text))
        except ArgSpecParseError as error:
            raise ArgumentError(f"pass pipeline {text!r} cannot be read: {error}") from error
        return cls(tuple(_instantiate(spec, table) for spec in specs))

    def run(
        self,
        module: ModuleOp,
        after: Callable[[Pass, ModuleOp], None] | None = None,
        located: Callable[[RefusalError], TesseraError] | None = None,
    ) -> None:
        """Applies the passes to `module` in place, verifies after each, and then calls `after` with pass and module.

        `located` says where in a text a refused operation stands. Raises `IRError` that names the pass when it leaves
        unsound IR, and what passes raise.
        """
        for step in self.passes:
            try:
                step.apply(module)
            except RefusalError as refusal:
                raise (refusal.error if located is None else located(refusal)) from refusal
            try:
                verify(module)
            except IRError as error:
                raise IRError(f"after pass {step}: {error.message}", hints=error.hints, where=error.where) from error
            if after is not None:
                after(step, module)

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))


def pass_class(name: str, table: Mapping[str, str] = IR_PASSES) -> type[Pass]:
    """The class of a pass. Raises `ArgumentError` for one that is not in `table`."""
    if name not in table:
        raise ArgumentError(f"there is no pass {name!r}", hints=(f"passes are {', '.join(sorted(table))}",))
    module, _, class_name = table[name].partition(":")
    return cast(type[Pass], getattr(importlib.import_module(module), class_name))


def _instantiate(spec: ArgSpec, table: Mapping[str, str]) -> Pass:
    kind = pass_class(spec.name, table)
    try:
        return kind.from_spec(spec)
    except ValueError as error:
        raise ArgumentError(f"pass {spec.name}: {error}") from error

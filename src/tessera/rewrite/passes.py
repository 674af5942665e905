"""The passes of this room, and the pipeline that every program goes through."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from tessera.ir.passes import Pass
from tessera.rewrite.engine import Firing, merge_equal, rewrite_function
from tessera.rewrite.extents import has_extent_names, name_extents
from tessera.rewrite.fusion.depth import DEPTH
from tessera.rewrite.fusion.kernels import UNLIMITED, Bounds, fuse_function
from tessera.rewrite.fusion.siblings import TOGETHER
from tessera.rewrite.rules import algebra, idioms, reductions, transposes

ALL_IDIOMS: Final = 2


@dataclass(frozen=True)
class RewritePass(Pass):
    """A pass over the functions of Graph IR that tells what it did."""

    def apply(self, module: ModuleOp) -> None:
        self.rewrite(module)

    def rewrite(self, module: ModuleOp) -> list[Firing]:
        """Rewrites every function; gives the log. Extents without names, as in a graph written by hand, get some."""
        log: list[Firing] = []
        for function in _functions(module):
            if not has_extent_names(function):
                name_extents(function)
            log += self.on_function(function)
        return log

    @abstractmethod
    def on_function(self, function: FuncOp) -> list[Firing]:
        """Rewrites one function; gives the log."""


@dataclass(frozen=True)
class NameExtentsPass(RewritePass):
    """Extents get names; the other passes do the same where names are missing."""

    name: ClassVar[str] = "name-extents"

    def on_function(self, function: FuncOp) -> list[Firing]:
        return []


@dataclass(frozen=True)
class SplitReductionsPass(RewritePass):
    """Reductions over dimensions that are no neighbours become several."""

    name: ClassVar[str] = "split-reductions"

    def on_function(self, function: FuncOp) -> list[Firing]:
        return rewrite_function(function, reductions.RULES)


@dataclass(frozen=True)
class AlgebraPass(RewritePass):
    """The algebraic rules, until none fires; then dead code goes."""

    name: ClassVar[str] = "algebra"

    def on_function(self, function: FuncOp) -> list[Firing]:
        return rewrite_function(function, (*algebra.RULES, *transposes.RULES))


@dataclass(frozen=True)
class MergeEqualPass(RewritePass):
    """Common subexpressions are computed once."""

    name: ClassVar[str] = "merge-equal"

    def on_function(self, function: FuncOp) -> list[Firing]:
        return merge_equal(function.body.block)


@dataclass(frozen=True)
class IdiomsPass(RewritePass):
    """Operators that users wrote out become one: attention (`most` 1), and what needs facts about extents (2): repeated
    heads, and masks that hide the future.
    """

    name: ClassVar[str] = "idioms"
    most: int = ALL_IDIOMS

    def on_function(self, function: FuncOp) -> list[Firing]:
        steps = (idioms.SOFTMAX, idioms.ATTENTION, idioms.GUARDED)[: self.most + 1] if self.most else ()
        log = [firing for rules in steps for firing in rewrite_function(function, rules)]
        if log:
            log += rewrite_function(function, (*algebra.RULES, *idioms.SCALES)) + merge_equal(function.body.block)
        return log


@dataclass(frozen=True)
class FuseKernelsPass(RewritePass):
    """Graph operations become schedule kernels of at most `limit` operations and about `depth` vector instructions.

    A limit of 1 is no fusion; `rewrite/fusion/depth.py` counts instructions. A kernel has `products` matrix products at
    most.
    """

    name: ClassVar[str] = "fuse-kernels"
    limit: int = UNLIMITED
    depth: int = DEPTH
    products: int = TOGETHER

    def on_function(self, function: FuncOp) -> list[Firing]:
        return fuse_function(function, Bounds(self.limit, self.depth, products=self.products))


def graph_passes(limit: int = UNLIMITED, idioms: int = ALL_IDIOMS) -> tuple[RewritePass, ...]:
    """From the graph as it was written to kernels, in order."""
    return (SplitReductionsPass(), AlgebraPass(), MergeEqualPass(), IdiomsPass(idioms), FuseKernelsPass(limit))


REWRITE_PASSES: Mapping[str, str] = {
    kind.name: f"{__name__}:{kind.__name__}"
    for kind in (NameExtentsPass, SplitReductionsPass, AlgebraPass, MergeEqualPass, IdiomsPass, FuseKernelsPass)
}
"""The passes of this room: name -> "module:Class"."""


def _functions(module: ModuleOp) -> Iterator[FuncOp]:
    return (operation for operation in module.ops if isinstance(operation, FuncOp))

"""The compiler's front step, which importing this module installs: pending nodes are then evaluated by it.

The compiler itself, and xdsl with it, is loaded by the first evaluation of an unknown expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from tessera.compiler.tune.tuner import autotune
from tessera.errors import ArgumentError
from tessera.lazy import evaluation
from tessera.lazy import issuing as lazy_issuing
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import Node
from tessera.lazy.structures.structure import Plan, Structure
from tessera.lazy.symbols.assumptions import Assumptions
from tessera.system import forks
from tessera.system.notebooks import ShownText
from tessera.tuning.interfaces import TuningBackend

__all__ = [
    "autotune",
    "evaluate",
    "evaluate_together",
    "inspect",
    "issue",
    "issue_into",
    "plan_over",
    "plan_template",
    "prepared",
    "tune",
]

N = TypeVar("N", bound=Node)


class Template(Protocol):
    """What plans have in common that differ in sizes alone."""

    @property
    def is_current(self) -> bool:
        """Whether its plans are what would be planned now."""

    @property
    def numbers(self) -> Any:
        """What `plan` needs, in nested tuples, of which numbers may be symbolic."""

    def plan(self, sizes: Sequence[int], numbers: Any, compiles: bool = True) -> Plan | None:
        """The plan for sizes that meet the assumptions, of `numbers` as they are for these; None where it would be
        another, and unless it `compiles` where a kernel is missing. Raises what compiling raises.
        """


@cache
def load() -> None:
    """Imports all that a first evaluation needs, which a fork of the program then has, too."""
    with forks.importing:
        from tessera.backend.registry import cpu_backend
        from tessera.compiler import issuing, pipeline  # noqa: F401
        from tessera.compiler.tune import tuning  # noqa: F401
        from tessera.scheduling.families.registry import families

        families()
        cpu_backend().preload()


def _tuning_backend() -> TuningBackend:
    load()
    from tessera.compiler.tune import tuning

    return tuning.CompilerBackend()


autotune.compiled_by(_tuning_backend)


def evaluate(nodes: Sequence[Node]) -> None:
    """Evaluates nodes that have no plan yet."""
    load()
    from tessera.compiler import pipeline

    pipeline.evaluate(nodes)


def prepared(structure: Structure) -> Plan:
    """The plan of a structure, made if there is none, and not run."""
    load()
    from tessera.compiler import pipeline

    return pipeline.plan(structure)


def plan_over(structure: Structure, targets: Mapping[int, tuple[int, Structure]]) -> Plan:
    """A plan of a structure that writes outputs to memory that exists: by the number of an output the number of a leaf,
    and how that lies. As far as nothing reads there afterwards; `run` gives what it wrote there as that leaf itself.
    """
    load()
    from tessera.compiler import pipeline

    return pipeline.plan_over(structure, targets)


def plan_template(
    structure: Structure, targets: Mapping[int, tuple[int, Structure]], assumptions: Assumptions
) -> Template | None:
    """What plans of structures that differ in sizes alone have in common, of one whose leaves' sizes are symbolic and
    to which `assumptions` belong; outputs are written to `targets` as `plan_over` does. None where there is no such.
    """
    load()
    from tessera.compiler import pipeline

    return pipeline.plan_template(structure, targets, assumptions)


def tune(structure: Structure, budget_s: float | None = None) -> None:
    """Measures the kernels of a structure's plan that were not measured yet: within so many seconds, the heaviest
    first, or each within TESSERA_TUNE_BUDGET. A kernel of which no candidate runs is a TuningWarning.
    """
    load()
    from tessera.compiler.tune import tuning

    tuning.tune(structure, budget_s)


def issue(nodes: Sequence[Node], stream: object) -> None:
    """Enqueues the computation of nodes on a stream."""
    load()
    from tessera.compiler import issuing

    issuing.issue(nodes, stream)


def issue_into(node: Node, target: Leaf, stream: object) -> None:
    """Enqueues the computation of a node into memory of the user."""
    load()
    from tessera.compiler import issuing

    issuing.issue_into(node, target, stream)


def evaluate_together(*tensors: N) -> tuple[N, ...]:
    """Computes several tensors in one native call, what they share once, and gives them back.

    Raises ArgumentError for what is no Tessera tensor, and InputMutatedError (E_INPUT_MUTATED) where a torch input was
    written to since it was used.
    """
    for tensor in tensors:
        if not isinstance(tensor, Node):
            raise ArgumentError(
                f"a {type(tensor).__name__} is nothing to evaluate", hints=["op.tensor(data) makes a tensor of data"]
            )
    evaluation.evaluate(tensors)
    return tensors


def inspect(node: Node, level: str) -> ShownText:
    """The text of a level of the compiler for a node's expression."""
    with forks.importing:
        from tessera.compiler.explain import inspection

    structure = node.structure if node.is_pending else getattr(node, "computed", node.structure)
    return ShownText(inspection.inspect_structure(structure, level))


evaluation.set_evaluator(evaluate)
lazy_issuing.set_issuers(issue, issue_into)

"""Evaluation: turning pending nodes into leaves. The compiler installs the function that plans what has no plan yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tessera.errors import CompileError, InputMutatedError
from tessera.lazy.attached import detached, is_attached
from tessera.lazy.attached import evaluate as evaluate_attached
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.constants import ConstantLeaf
from tessera.lazy.leaves.export import to_torch, unknown_values
from tessera.lazy.leaves.leaf import Attached, Leaf, Placeholder
from tessera.lazy.node import Node, apart, joined
from tessera.lazy.policy import is_current
from tessera.lazy.promise import Promise, is_ordered, settle
from tessera.lazy.structures.structure import Structure

Evaluator: TypeAlias = Callable[[Sequence[Node]], None]


def refuse(nodes: Sequence[Node]) -> None:
    """The evaluator before there is a compiler: raises CompileError (E_COMPILE)."""
    raise CompileError(
        f"{len(nodes)} tensors are to be evaluated, and no compiler is installed", hints=["from tessera import op"]
    )


_evaluator: Evaluator = refuse


def set_evaluator(evaluator: Evaluator) -> Evaluator:
    """Installs the function that evaluates pending nodes without a plan, and gives the one it replaces.

    It gets distinct nodes whose inputs have been checked, and stores each result with `Node.store`. It may set
    `structure.plan`, of a node or of `node.joined(nodes)`, so that it is not asked again.
    """
    global _evaluator
    previous, _evaluator = _evaluator, evaluator
    return previous


before_run: Callable[[], None] | None = None
"""Called, where there is one, before plans run, by the thread that runs them. Profiles look there who runs them."""


def evaluate(nodes: Iterable[Node]) -> None:
    """Evaluates pending nodes together, those of each device in turn; each then holds its result. Waits for queued work
    that they depend on.

    Raises InputMutatedError (E_INPUT_MUTATED) for a torch tensor that was written to since it was taken.
    """
    originals = list(dict.fromkeys(nodes))
    # Another thread may evaluate the same nodes meanwhile; copies keep the states of this call together.
    pairs = [(node, Node(node.state)) for node in originals]
    pending = []
    for node, copy in pairs:
        if copy.is_pending:
            pending.append((node, copy))
        else:
            settle(copy.leaves)
    if not pending:
        return
    copies = [copy for _, copy in pending]
    followed = [copy for copy in copies if is_attached(copy)]
    if followed:
        copies = [copy for copy in copies if copy not in followed]
        evaluate_attached(followed)
    for copy in copies:
        check_versions(copy.leaves)
    for group in [copies] if len(copies) == 1 else _by_device(copies):
        _evaluate_together(group)
    for node, copy in pending:
        node.store(copy.leaves[0])


def _by_device(nodes: Sequence[Node]) -> Iterable[Sequence[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.structure.device or CPU, []).append(node)
    return groups.values()


def _evaluate_together(nodes: Sequence[Node]) -> None:
    structure, leaves = nodes[0].state if len(nodes) == 1 else joined(nodes)
    settle(leaves)
    results = _planned(structure, leaves)
    if results is None:
        _evaluator(nodes)
        return
    for node, leaf in zip(nodes, results, strict=True):
        node.store(leaf)


def evaluate_over(structure: Structure, leaves: tuple[Leaf, ...]) -> Sequence[Leaf]:
    """The results of a structure, of each root where it has several (`node.joined`), over leaves that were checked and
    settled: for those who evaluate one structure again and again.
    """
    results = _planned(structure, leaves)
    if results is not None:
        return results
    nodes = apart(structure, leaves)
    _evaluator(nodes)
    return [node.leaves[0] for node in nodes]


def _planned(structure: Structure, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...] | None:
    """What the plan of a structure gives; None where it has none that may be run here."""
    if before_run is not None:
        before_run()
    plan = structure.plan
    if plan is None or not is_current(plan.threads):
        return None
    return plan.run(leaves)


def check_versions(leaves: Sequence[Leaf]) -> None:
    """Raises InputMutatedError (E_INPUT_MUTATED) if a torch tensor behind a leaf was written to since it was taken, and
    ValueControlFlowError (E_VALUE_CONTROL_FLOW) for the argument of a function that is being traced. Waits for values
    that are on their way.
    """
    for leaf in leaves:
        if type(leaf.owner) is Promise:
            leaf.owner.wait()
    refuse_mutated(leaves)


def refuse_mutated(leaves: Sequence[Leaf]) -> None:
    """As `check_versions`, without waiting for anything."""
    for leaf in leaves:
        if isinstance(leaf, Placeholder):
            raise unknown_values()
        if type(leaf) is Attached:
            raise detached()
        if isinstance(leaf, ConstantLeaf):
            leaf.refresh()
        if leaf.version is not None and leaf.owner._version != leaf.version and type(leaf.owner) is not Promise:
            if is_ordered():
                continue
            raise InputMutatedError(
                f"an input of shape {tuple(leaf.shape)} was written to after it was used and before its result was "
                f"evaluated (version {leaf.version} then, {leaf.owner._version} now)",
                hints=["call .eval() before writing to the tensor", "or pass tensor.clone()"],
            )
        if leaf.origin and leaf.owner.data_ptr() != leaf.origin:
            raise InputMutatedError(
                f"an input of shape {tuple(leaf.shape)} was given other memory (tensor.data = ..., or its storage was "
                "resized) after it was used and before its result was evaluated",
                hints=["call .eval() before", "or pass tensor.detach(), which keeps the memory that .data replaces"],
            )


def evaluate_into(node: Node, target: Leaf) -> None:
    """Evaluates a node into memory that exists already, a `target` of the node's shape and dtype; the node then
    holds it.

    The plan writes there itself where the target is contiguous and shares nothing with an input; else, and at the
    first evaluation of a structure, the result is copied.
    """
    structure, leaves = node.state
    plan = structure.plan
    check_versions(leaves)
    settle(leaves, (target,))
    if before_run is not None:
        before_run()
    if plan is None or not is_current(plan.threads) or target.overlaps(leaves) or not plan.run_into(leaves, (target,)):
        result = Node((structure, leaves))
        evaluate([result])
        to_torch(target).copy_(to_torch(result.leaves[0]))
    node.store(target)

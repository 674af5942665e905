"""Which rules made an operation what it is. The names stay with it from rule to rule, and into its kernel.

%1 = matmul(transpose(%A), %B)     fold-transpose-into-matmul     %1 = matmul(%A, %B, transpose_a)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from xdsl.ir import Operation

from tessera.ir.graph.operations import GraphOperation
from tessera.ir.schedule.operations import ScheduleKernelOp

_rules: WeakKeyDictionary[Operation, tuple[str, ...]] = WeakKeyDictionary()


def rules_of(operation: Operation) -> tuple[str, ...]:
    """The names of the rules behind an operation, each once, in the order in which they fired."""
    return _rules.get(operation, ())


def rules_of_kernel(kernel: ScheduleKernelOp) -> tuple[str, ...]:
    """The names of the rules behind all operations of a kernel, and then behind the kernel."""
    return _each_once([*[rules_of(operation) for operation in kernel.body.block.ops], rules_of(kernel)])


def inherit(heirs: Iterable[Operation], forebears: Sequence[Operation], *rules: str) -> None:
    """Adds, to the names behind `heirs`, those behind `forebears` and then `rules`."""
    given = _each_once([*[rules_of(each) for each in forebears], rules])
    if given:
        for heir in heirs:
            _rules[heir] = _each_once([rules_of(heir), given])


def replaced(operation: GraphOperation, survivors: set[Operation]) -> list[Operation]:
    """An operation whose result nothing uses any more and what goes with it, the farthest first: operations whose
    results nothing else uses, but `survivors`.
    """
    gone: dict[Operation, None] = {operation: None}
    waiting = [operation]
    while waiting:
        for operand in waiting.pop().inputs:
            owner = operand.owner
            if not isinstance(owner, GraphOperation) or owner in gone or owner in survivors:
                continue
            if all(use.operation in gone for use in owner.result.uses):
                gone[owner] = None
                waiting.append(owner)
    return list(reversed(gone))


def _each_once(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))

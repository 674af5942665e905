"""Verifying a module: each operation's own rules, structure, then dominance."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from tessera.errors import IRError
from tessera.ir.dominance import Violation, find_dominance_violation


def find_violation(root: Operation) -> Violation | None:
    """The first operation below `root` (or `root` itself) that breaks a rule, or None."""
    for op in root.walk():
        try:
            # One at a time, so that the error is about this operation; `Operation.verify` would print the whole module.
            op.verify(verify_nested_ops=False)
            _verify_blocks(op)
        except VerifyException as error:
            return Violation(op, str(error).removeprefix("Operation does not verify: "))
    return find_dominance_violation(root)


def _verify_blocks(op: Operation) -> None:
    for region in op.regions:
        for block in region.blocks:
            if block.is_empty:
                block.verify()


def verify(module: ModuleOp) -> None:
    """Raises `IRError` with the operation and the rule when `module` is not sound."""
    violation = find_violation(module)
    if violation is not None:
        raise IRError(violation.message, hints=(f"in {_one_line(violation.operation)}",))


def _one_line(op: Operation) -> str:
    first = str(op).splitlines()[0]
    return first if len(first) <= 200 else first[:197] + "..."

"""Is a winner that comes from a file legal here? As far as its identity tells which kernel it is for.

A kernel is judged again when it is bound: this is for telling the user at once what of a file cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.errors import TesseraError
from tessera.ops import algebra
from tessera.ops.record import OPERATORS
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Identity

Poser = Callable[[object, object, object], TuningProblem]
"""`TuningBackend.subject`."""


def objection(entry: Entry, pose: Poser) -> str | None:
    """What speaks against the schedule of an entry, whose problem is posed by `pose`; None where nothing does, and for
    kernels of several operators, of other threads or of a device that is not here.
    """
    problem = _problem(entry.identity, pose)
    reasons = () if problem is None else problem.space.objections(entry.schedule)
    return f"its schedule is illegal here ({', '.join(reasons)})" if reasons else None


def _problem(identity: Identity, pose: Poser) -> TuningProblem | None:
    """The problem of an identity that names a single operator; None where posing it gives no or another identity."""
    if identity.operator not in OPERATORS or not identity.dtypes:
        return None

    def operator(*operands: Any) -> Any:
        return algebra.call(identity.operator, *operands)

    operator.__name__ = identity.operator
    try:
        problem = pose(operator, identity.shape, identity.dtypes[0])
    except TesseraError:
        return None
    return problem if problem.identity == identity else None

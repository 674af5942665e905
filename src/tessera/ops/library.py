"""Records of operators that plans call a library for: no tile body, everything else as for any operator.

To add one, write its rules and a function `(inputs, outputs, attributes) -> None` over torch tensors, which fills the
outputs (contiguous, of the record's shape and dtype) from the inputs (any strides), and `define` it. It runs in its
place among a plan's kernels, on the plan's memory, on every device that torch knows. Where a call of torch takes longer
than the work, a rule `native` names a routine that does it on CPUs, with the same bits (`ops/native_calls.py`).
"""

from __future__ import annotations

from typing import Any

from tessera.ops.emitter import Emitter, V
from tessera.ops.record import CostRule, LibraryCall, Named, Operator, elements, register


def define(name: str, call: LibraryCall, attributes: Named, **rules: Any) -> Operator:
    """Registers an operator of the family "library". `rules` are the other fields of `Operator`; by default it takes
    one operand, computes nothing, and moves each byte once.
    """
    fields: dict[str, Any] = {"arity": (1, 1)} | rules
    return register(Operator(name=name, family="library", body=_no_body, attributes=attributes, library=call, **fields))


def per_element(count: int) -> CostRule:
    """So many operations for each element of the result."""
    return lambda operands, result, attributes: count * elements(result.shape)


def _no_body(e: Emitter[V], *values: V, **attributes: object) -> V:
    raise AssertionError("calls of libraries are steps of plans, and no part of a kernel")

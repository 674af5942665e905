"""Symbolic forms: what is left of a structure when extents are run-time values.

One compiled program serves all structures with the same form. Nodes of the form correspond one to one to
`structure.post_order()`, so the extents of node `i` are those of `structure.post_order()[i]`.

An extent of 1 stays in the form, everywhere: dimensions that broadcast are static in Graph IR, and a matrix of one
row wants code of its own. All other extents, 0 included, are run-time values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tessera.dtypes import DType
from tessera.lazy.structures.structure import Attributes, Kind, Occurrence, OperatorRecord, Structure
from tessera.system import forks

SymbolicShape: TypeAlias = tuple[int | None, ...]

FORM_LIMIT: Final = 1 << 13
"""Forms that are remembered before those without a program are forgotten."""


class SymbolicNode(NamedTuple):
    """One node of a form. `shape` has 1 or None (any extent); `strides`, for buffers, 0, 1 or None (any stride)."""

    kind: Kind
    operator: OperatorRecord | None
    attributes: Attributes
    operands: tuple[int, ...]
    leaf: int | None
    dtype: DType
    shape: SymbolicShape
    strides: SymbolicShape
    value: str | None

    @property
    def named_attributes(self) -> dict[str, Any]:
        """The attributes that decide code, by name; those that hold extents are None."""
        return dict(zip(self.operator.attribute_names, self.attributes, strict=True)) if self.operator else {}


class SymbolicForm:
    """An interned form: `nodes` in post-order, the root last. `program` is the compiler's."""

    __slots__ = ("nodes", "program")

    def __init__(self, nodes: tuple[SymbolicNode, ...]) -> None:
        self.nodes = nodes
        self.program: Any = None

    def __repr__(self) -> str:
        return f"<symbolic form of {len(self.nodes)} nodes>"


_forms: dict[tuple[SymbolicNode, ...], SymbolicForm] = {}
_lock = forks.lock()


def symbolic_form(structure: Structure, order: Sequence[Occurrence] | None = None) -> SymbolicForm:
    """The form of a structure; the same object for all structures that one program serves.

    `order` is `structure.post_order()`, where the caller has it.
    """
    cached: SymbolicForm | None = structure.symbolic_cache
    if cached is not None:
        return cached
    nodes = tuple([_node(occurrence) for occurrence in order or structure.post_order()])
    form = _forms.get(nodes)
    if form is None:
        if len(_forms) >= FORM_LIMIT:
            _forget_forms()
        form = _forms.setdefault(nodes, SymbolicForm(nodes))
    structure.symbolic_cache = form
    return form


def _node(occurrence: Occurrence) -> SymbolicNode:
    structure, operands, leaf = occurrence
    operator, attributes = structure.operator, structure.attributes
    if operator is not None and attributes:
        attributes = operator.symbolic_attributes(attributes, structure.operands, structure.shape)
    strides = structure.strides
    value = structure.value
    fields = (
        structure.kind,
        operator,
        attributes,
        operands,
        leaf,
        structure.dtype,
        tuple([1 if extent == 1 else None for extent in structure.shape]),
        tuple([stride if stride in (0, 1) else None for stride in strides]) if strides else (),
        None if value is None else repr(value),
    )
    # On the path of binding: the constructor of a named tuple is a Python function.
    return tuple.__new__(SymbolicNode, fields)


def _forget_forms() -> None:
    with _lock:
        for nodes, form in list(_forms.items()):
            if form.program is None:
                _forms.pop(nodes, None)

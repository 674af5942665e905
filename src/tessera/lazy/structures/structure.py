"""Structures: descriptions of algebra over leaves, and the walk over one.

A structure says which operators are applied to which leaves, and the shape and dtype that come out. It holds no
data. The same algebra over leaves of the same shapes, strides and dtypes is the same object
(`lazy/structures/interning.py`), so that a compiled plan can hang on it and a known expression is recognized by one
dictionary look-up.

A structure numbers its leaves from 0 in the order in which its operands bring them. An operand's *position* says which
they are: an integer `p` where the operand's leaf `i` is leaf `p + i` of the structure, else the tuple of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from tessera.dtypes import DType
from tessera.lazy.layouts import Layout

Shape: TypeAlias = tuple[int, ...]
Position: TypeAlias = int | tuple[int, ...]
Attributes: TypeAlias = tuple[Any, ...]
Kind: TypeAlias = Literal["buffer", "scalar", "constant", "node", "tuple"]


class OperatorRecord(Protocol):
    """What this layer asks of an operator's record; `ops.record.Operator` is the one that stands here."""

    @property
    def name(self) -> str:
        """The operator's name."""

    @property
    def attribute_names(self) -> tuple[str, ...]:
        """Names of the values in `Structure.attributes`, in order."""

    def resolve(
        self, attributes: Attributes, operands: tuple[Structure, ...]
    ) -> tuple[tuple[Structure, ...], Shape, DType]:
        """The operands after implied casts, and the shape and dtype of the result. Raises what the shape rule
        raises.
        """

    def replaced(
        self, attributes: Attributes, operands: tuple[Structure, ...], positions: tuple[Position, ...]
    ) -> Structure | None:
        """What stands for the operator over these operands where it is another expression of the same leaves, else
        None.
        """

    def device_of(self, attributes: Attributes, device: str) -> str:
        """The device of the result over operands on a device."""

    def symbolic_attributes(self, attributes: Attributes, operands: tuple[Structure, ...], shape: Shape) -> Attributes:
        """The attributes as far as they decide the code of a kernel: extents are left out."""


class Structure:
    """One interned structure. Identity is equality; make them with `intern`, `buffer`, `scalar`, `constant` and
    `bundle`.

    `kind` says what stands at the root: a "buffer" or a "scalar" (leaves), a "constant", a "node" (an operator), or a
    "tuple" of roots that are evaluated together. `strides` are in elements, and 0 along extents of 1, for buffers only;
    a result is contiguous. `frozen` says of a buffer that its contents stay (`op.constant`). `device` names the device
    of the elements ("cpu", "cuda:0"); numbers and constants have none and go with any. `layout` says how a buffer is
    shared out over a mesh, None for one that lies on a single device. `size` counts the distinct
    operators below, itself included, or bounds the count from above; `serial` and `oldest` serve that count
    (`_measure`). `plan` is the compiler's: None, or an object whose `run(leaves)` gives the result leaves.
    """

    __slots__ = (
        "attributes",
        "device",
        "dtype",
        "frozen",
        "kind",
        "layout",
        "leaf_count",
        "oldest",
        "operands",
        "operator",
        "plan",
        "positions",
        "serial",
        "shape",
        "size",
        "strides",
        "symbolic_cache",
        "value",
    )

    kind: Kind
    operator: OperatorRecord | None
    attributes: Attributes
    operands: tuple[Structure, ...]
    positions: tuple[Position, ...]
    shape: Shape
    dtype: DType
    strides: Shape
    device: str | None
    frozen: bool
    layout: Layout | None
    value: bool | int | float | None
    leaf_count: int
    size: int
    serial: int
    oldest: int
    plan: Plan | None
    symbolic_cache: Any

    def __init__(
        self,
        kind: Kind,
        shape: Shape,
        dtype: DType,
        *,
        strides: Shape = (),
        device: str | None = None,
        frozen: bool = False,
        layout: Layout | None = None,
        value: bool | int | float | None = None,
        leaf_count: int = 0,
    ) -> None:
        self.kind = kind
        self.operator = None
        self.attributes = ()
        self.operands = ()
        self.positions = ()
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.device = device
        self.frozen = frozen
        self.layout = layout
        self.value = value
        self.leaf_count = leaf_count
        self.size = 0
        self.serial = 0
        self.oldest = 0
        self.plan = None
        self.symbolic_cache = None

    @property
    def weak(self) -> bool:
        """Whether this is a Python number, which decides a result's dtype only where its kind is the wider one."""
        return self.kind == "scalar"

    @property
    def is_leaf(self) -> bool:
        """Whether this stands for one leaf."""
        return self.kind in ("buffer", "scalar")

    @property
    def named_attributes(self) -> dict[str, Any]:
        """The operator's attributes by name."""
        return dict(zip(self.operator.attribute_names, self.attributes, strict=True)) if self.operator else {}

    def post_order(self) -> list[Occurrence]:
        """All distinct nodes, leaves and constants, operands before uses; the structure itself comes last."""
        return _post_order(self)

    def __repr__(self) -> str:
        name = self.operator.name if self.operator else self.kind
        return f"<{name} {self.dtype}{list(self.shape)}, {self.size} operators over {self.leaf_count} leaves>"


class Plan(Protocol):
    """A structure bound to compiled code. It takes each `Leaf` in the structure's order."""

    @property
    def threads(self) -> int | None:
        """The number of threads that it was bound for (`lazy.threads.worker_count`); None where it fits any."""

    def run(self, leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        """Evaluates over `leaves` and gives a `Leaf` per root."""

    def reserve(self, leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        """What `run` would give, with memory but without values: `fill` writes them."""

    def fill(self, leaves: tuple[Any, ...], targets: tuple[Any, ...]) -> None:
        """Evaluates into what `reserve` gave."""

    def run_into(self, leaves: tuple[Any, ...], targets: tuple[Any, ...]) -> bool:
        """Evaluates into a `Leaf` per root; False, with nothing done, where the plan cannot write there."""


def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides in elements."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent or 1
    return tuple(reversed(strides))


_new = tuple.__new__
"""Makes a named tuple in half the time that its own constructor, a Python function, takes."""


class Occurrence(NamedTuple):
    """A structure at its place in a graph: indices of its operands in the post-order, and the root's leaf number for
    a leaf.
    """

    structure: Structure
    operands: tuple[int, ...]
    leaf: int | None


def _occurrence_leaves(base: Sequence[int], position: Position, count: int) -> Sequence[int]:
    if isinstance(position, tuple):
        return tuple([base[p] for p in position])
    return base[position : position + count]


class _Occurrences:
    """Collects occurrences in order; those that are the same structure over the same leaves are one."""

    __slots__ = ("_known", "_leaves", "order")

    def __init__(self) -> None:
        self.order: list[Occurrence] = []
        self._leaves: dict[int, int] = {}
        self._known: dict[Structure, list[tuple[Sequence[int], int]]] = {}

    def place(self, structure: Structure, base: Sequence[int]) -> int | None:
        """The index of an occurrence; None for one over operands that is not known yet."""
        if structure.operands:
            count = structure.leaf_count
            for known, index in self._known.get(structure, ()):
                if known is base or known[:count] == base[:count]:
                    return index
            return None
        if not structure.leaf_count:
            known_constant = self._known.get(structure)
            return known_constant[0][1] if known_constant else self.add(structure, base, ())
        number = base[0]
        found = self._leaves.get(number)
        if found is None:
            found = self._leaves[number] = len(self.order)
            self.order.append(_new(Occurrence, (structure, (), number)))
        return found

    def add(self, structure: Structure, base: Sequence[int], operands: tuple[int, ...]) -> int:
        """Appends what is no leaf, after its operands."""
        index = len(self.order)
        self.order.append(_new(Occurrence, (structure, operands, None)))
        self._known.setdefault(structure, []).append((base, index))
        return index


def _post_order(root: Structure) -> list[Occurrence]:
    """All distinct nodes, leaves and constants below a structure, operands before uses; the structure comes last.

    On the path of binding: about 0.4 us a node.
    """
    # Depth first, with a stack of its own: graphs are deeper than Python's recursion goes.
    found = _Occurrences()
    opened: list[tuple[Structure, Sequence[int], list[int]]] = []
    structure = root
    base: Sequence[int] = tuple(range(root.leaf_count))  # slices of ranges would not be comparable with tuples
    while True:
        index = found.place(structure, base)
        if index is None:
            opened.append((structure, base, []))
        while opened:
            structure, base, operands = opened[-1]
            if index is not None:
                operands.append(index)
            done = len(operands)
            if done < len(structure.operands):
                position = structure.positions[done]
                structure = structure.operands[done]
                # A prefix needs no slice: structures read only as many entries as they have leaves.
                base = _occurrence_leaves(base, position, structure.leaf_count) if position else base
                break
            opened.pop()
            index = found.add(structure, base, tuple(operands))
        else:
            return found.order

"""Algebra on nodes: Python's operators, and what gradient rules are written with.

Operators are looked up in the registry by name, since rules of one family use operators of others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy
import torch

from tessera.dtypes import DType, accumulator, bool_, real_of
from tessera.errors import ArgumentError
from tessera.lazy.issuing import issue
from tessera.lazy.leaves.conversion import NotATensorError, as_node, as_operands, as_pair, beside
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.lazy.leaves.scalars import LITERALS, Number
from tessera.lazy.node import Node, constant_node, leaf_node, use_node_class
from tessera.lazy.structures import interning
from tessera.lazy.structures.building import apply, binary, unary
from tessera.lazy.structures.structure import Shape
from tessera.ops.record import OPERATORS, Operator


def _binary_method(name: str, reflected: bool = False) -> Callable[[Any, object], Any]:
    operator: Operator | None = None

    def method(self: Node, other: object) -> Any:
        nonlocal operator
        if operator is None:  # families register after this module is loaded
            operator = OPERATORS[name]
        if type(other) is not type(self):
            try:
                other = beside(other, self)
            except NotATensorError:
                return NotImplemented
        if reflected:
            return binary(operator, (), cast(Node, other), self)
        return binary(operator, (), self, cast(Node, other))

    method.__name__ = f"__{'r' if reflected else ''}{name}__"
    method.__doc__ = f"The operator `{name}`{' with the operands exchanged' if reflected else ''}."
    return method


def _bits_method(of_bools: str, of_integers: str) -> Callable[[Any, object], Any]:
    """`&`, `|` or `^`: of bools the logical operator, which rewrites know, else that of bits."""
    logical, bitwise = _binary_method(of_bools), _binary_method(of_integers)

    def method(self: Node, other: object) -> Any:
        if self.dtype is bool_ and (isinstance(other, bool) or getattr(other, "dtype", None) in _BOOLS):
            return logical(self, other)
        return bitwise(self, other)

    method.__doc__ = bitwise.__doc__
    return method


_BOOLS = (bool_, torch.bool, numpy.dtype(bool))
"""Dtypes that mean bools; `in` compares them with whatever another library's tensors have."""


class Algebra(Node):
    """A node with Python's arithmetic operators and comparisons; the other operand may be a tensor of any library or
    a number.
    """

    __slots__ = ()

    __add__ = _binary_method("add")
    __radd__ = _binary_method("add", reflected=True)
    __sub__ = _binary_method("sub")
    __rsub__ = _binary_method("sub", reflected=True)
    __mul__ = _binary_method("mul")
    __rmul__ = _binary_method("mul", reflected=True)
    __truediv__ = _binary_method("div")
    __rtruediv__ = _binary_method("div", reflected=True)
    __lt__ = _binary_method("lt")
    __le__ = _binary_method("le")
    __gt__ = _binary_method("gt")
    __ge__ = _binary_method("ge")
    __eq__ = _binary_method("eq")
    __ne__ = _binary_method("ne")
    __and__ = __rand__ = _bits_method("logical_and", "bitwise_and")
    __or__ = __ror__ = _bits_method("logical_or", "bitwise_or")
    __xor__ = __rxor__ = _bits_method("ne", "bitwise_xor")
    __lshift__ = _binary_method("bitwise_left_shift")
    __rlshift__ = _binary_method("bitwise_left_shift", reflected=True)
    __rshift__ = _binary_method("bitwise_right_shift")
    __rrshift__ = _binary_method("bitwise_right_shift", reflected=True)
    # Comparisons give tensors, so that only identity is left to hash by, as in torch.
    __hash__ = object.__hash__

    def __pow__(self, exponent: object) -> Any:
        return power(self, exponent)

    def __rpow__(self, base: object) -> Any:
        return power(beside(base, self), self)

    def __neg__(self) -> Any:
        return unary(OPERATORS["neg"], (), self)

    def __abs__(self) -> Any:
        return unary(OPERATORS["abs"], (), self)

    def __invert__(self) -> Any:
        """The opposite of bools, the other bits of integers."""
        return unary(OPERATORS["logical_not" if self.dtype is bool_ else "bitwise_not"], (), self)

    def __pos__(self) -> Any:
        return self


use_node_class(Algebra)


def call(name: str, *operands: object, **attributes: Any) -> Any:
    """The node of operator `name`; attributes left out have their defaults."""
    operator = OPERATORS[name]
    nodes = operands if all(isinstance(operand, Node) for operand in operands) else as_operands(operands)
    return apply(operator, operator.attribute_values(**attributes), cast("Sequence[Node]", nodes))


def power(base: Node, exponent: object) -> Any:
    """`base ** exponent`; for 0.5 and -0.5 the (reciprocal) square root, as in torch: of -inf it is NaN.

    Raises ArgumentError (E_ARGUMENT) for a negative integer exponent of integers, as torch does.
    """
    if isinstance(exponent, float) and exponent in _ROOTS and base.dtype.kind == "float":
        return unary(OPERATORS[_ROOTS[exponent]], (), base)
    if isinstance(exponent, int) and exponent < 0 and base.dtype.kind != "float":
        raise ArgumentError(
            f"integers to the negative power {exponent}", hints=["cast the base to a floating-point dtype"]
        )
    return binary(OPERATORS["pow"], (), base, beside(exponent, base))


_ROOTS = {0.5: "sqrt", -0.5: "rsqrt"}


def filled(value: Number, like: Node) -> Any:
    """A tensor of one literal value, in the shape and dtype of another tensor."""
    number = literal(value, like.dtype)
    return number if not like.shape else call("broadcast_to", number, shape=like.shape)


def literal(value: Number, dtype: DType) -> Any:
    """A literal without dimensions, part of the algebra; of complex numbers, one made of a real literal."""
    if dtype.kind == "complex":
        return call("cast", literal(value, real_of(dtype)), dtype=dtype)
    return constant_node(interning.constant(value, dtype))


def filling(value: Number, dtype: DType) -> Any:
    """A number without dimensions that much is filled with. Where rewrites know nothing of it, an argument of the
    program: other numbers are no other kernels. Raises ArgumentError for numbers that an integer dtype does not have.
    """
    if dtype.kind == "int":
        limits = torch.iinfo(dtype.torch)
        if not limits.min <= value <= limits.max:  # NaN is not either
            raise ArgumentError(f"{value} is no number of {dtype.name}", hints=["a number in the dtype's range"])
        value = int(value)
    if value in LITERALS or dtype.kind not in ("int", "float"):
        return literal(value, dtype)
    argument = leaf_node(scalar_leaf(value, accumulator(dtype)))
    return argument if argument.dtype is dtype else call("cast", argument, dtype=dtype)


def widely(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that computes in the accumulator of its operands' dtype, and rounds once, as a kernel would."""

    @functools.wraps(rule)
    def wide(*operands: Node, **attributes: Any) -> Any:
        dtype = operands[0].dtype
        if accumulator(dtype) is dtype:
            return rule(*operands, **attributes)
        cast_up = [call("cast", operand, dtype=accumulator(dtype)) for operand in operands]
        return call("cast", rule(*cast_up, **attributes), dtype=dtype)

    return wide


def sum_to(node: Node, shape: Shape) -> Any:
    """The sum over the dimensions along which `shape` was broadcast to the node's shape: the transpose of
    broadcasting.
    """
    if node.shape == shape:
        return node
    extra = len(node.shape) - len(shape)
    repeated = [axis + extra for axis, extent in enumerate(shape) if extent == 1 and node.shape[axis + extra] != 1]
    axes = (*range(extra), *repeated)
    reduced = call("sum", node, axes=axes, keepdims=True) if axes else node
    return call("reshape", reduced, shape=shape) if extra else reduced


def call_unary(name: str, operand: object, stream: object = None) -> Any:
    """The node of an operator of one operand without attributes."""
    node = unary(OPERATORS[name], (), operand if isinstance(operand, Node) else as_node(operand))
    return node if stream is None else issue(node, stream)


def call_binary(name: str, first: object, second: object, stream: object = None) -> Any:
    """The node of an operator of two operands without attributes."""
    node = binary(OPERATORS[name], (), *as_pair(first, second))
    return node if stream is None else issue(node, stream)

"""Complex numbers: what operators mean on them, and the records that they add.

Kernels compute with real numbers. A complex tensor of shape `s` is a real one of shape `(*s, 2)` to them, real and
imaginary parts side by side (`view_as_real`, `view_as_complex`: views, no work), and what acts on both parts alike
(sums, differences, negation, products with real numbers, casts) is an ordinary operator on that, which fuses as any
other. Products, quotients and absolute values of complex numbers are calls of torch's library. All else refuses complex
operands by name.

Gradients are those of torch: for a real result L the cotangent of z = x + iy is dL/dx + i dL/dy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, complex_of, fp32, fp64, real_of
from tessera.ir.anchors import rules as anchor_rules
from tessera.lazy.leaves.views import as_real
from tessera.lazy.node import leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.promotion import broadcast_shape, common_dtype
from tessera.lazy.structures.structure import Attributes, Position, Shape, Structure
from tessera.ops.algebra import call, literal, sum_to
from tessera.ops.applications import transforms
from tessera.ops.emitter import Emitter, V
from tessera.ops.layout.views import existing, indexed
from tessera.ops.library import define, per_element
from tessera.ops.record import (
    COMPLEX_RULES,
    OPERATORS,
    Named,
    Operator,
    Typed,
    dtype_error,
    elements,
    register,
    shape_error,
)

N: TypeAlias = Any
Positions: TypeAlias = tuple[Position, ...]

PAIR = 2
"""The extent of the dimension that holds real and imaginary parts."""


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operand.dtype for operand in operands]


def conjugate(z: N) -> N:
    """The complex conjugate: the imaginary parts times -1, one kernel."""
    real = real_of(z.dtype)
    number = call("cast", call("iota", shape=(PAIR,)), dtype=real)  # 0 for real parts, 1 for imaginary ones
    return call("view_as_complex", call("view_as_real", z) * (literal(1, real) - number * literal(2, real)))


def part(z: N, which: int) -> N:
    """The real (0) or the imaginary (1) parts. Raises DTypeError for the imaginary parts of real numbers."""
    if z.dtype.kind != "complex":
        if which:
            raise dtype_error("imag", [z], "real numbers have no imaginary parts")
        return z
    leaf = existing(z)
    parts = leaf_node(as_real(leaf)) if leaf else call("view_as_real", z)
    return indexed(parts, (..., which))


def joined(real: N, imag: N) -> N:
    """Complex numbers of these parts, which broadcast. Raises ShapeMismatchError, DTypeError."""
    if "complex" in (real.dtype.kind, imag.dtype.kind):
        raise dtype_error("complex", [real, imag], "the parts are real numbers")
    dtype = fp64 if fp64 in (real.dtype, imag.dtype) else fp32
    shape = broadcast_shape([real.shape, imag.shape])
    if shape is None:
        raise shape_error("complex", [real, imag], "the shapes do not broadcast")
    parts = (x if x.dtype is dtype else call("cast", x, dtype=dtype) for x in (real, imag))
    # Nodes, and no views of what exists, which gradients would not follow.
    whole = (x if x.shape == shape else call("broadcast_to", x, shape=shape) for x in parts)
    columns = (call("reshape", x, shape=(*shape, 1)) for x in whole)
    return call("view_as_complex", call("concat", *columns, axis=len(shape)))


# -- views ------------------------------------------------------------------------------------------------------------


def _real_part(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    if cast[0].kind != "complex":
        raise dtype_error(name, operands, "defined on complex numbers only")
    return real_of(cast[0])


def _complex_of_parts(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    if cast[0] not in (real_of(complex_of(cast[0])),):
        raise dtype_error(name, operands, "complex numbers have parts of fp32 or fp64", ['cast: x.to("fp32")'])
    return complex_of(cast[0])


def _copy_body(e: Emitter[V], x: V, **attributes: object) -> V:
    return x


def _real_reference(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x)


def _complex_reference(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.contiguous())


def _real_gradient(g: N, operands: tuple[N], out: N) -> tuple[N]:
    return (call("view_as_complex", g),)


def _complex_gradient(g: N, operands: tuple[N], out: N) -> tuple[N]:
    return (call("view_as_real", g),)


_VIEW: Mapping[str, Any] = {
    "family": "layout",
    "arity": (1, 1),
    "operand_dtypes": _as_given,
    "body": _copy_body,
    "attributes": {},
}
"""What the records of both views say alike."""

register(
    Operator(
        name="view_as_real",
        element=_real_part,
        reference=_real_reference,
        gradient=_real_gradient,
        anchor=anchor_rules.parts,
        movement="parted",
        application=transforms.of_complex_maps(1),
        **_VIEW,
    )
)
register(
    Operator(
        name="view_as_complex",
        element=_complex_of_parts,
        reference=_complex_reference,
        gradient=_complex_gradient,
        anchor=anchor_rules.pairs,
        movement="paired",
        application=transforms.of_parts,
        **_VIEW,
    )
)


# -- calls of the library ---------------------------------------------------------------------------------------------


def _met(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """Both operands in the complex dtype in which they meet."""
    return [complex_of(common_dtype(operands))] * 2


def _broadcast(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    shape = broadcast_shape([operand.shape for operand in operands])
    if shape is None:
        raise shape_error(name.removeprefix("complex_"), operands, "the shapes do not broadcast")
    return shape, cast[0]


def _product_shape(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    shape, _ = OPERATORS["matmul"].result_of(operands, cast, {})
    return shape, cast[0]


def _product_flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    return 8 * elements(result.shape) * operands[0].shape[-1]


def _mul(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    torch.mul(*inputs, out=outputs[0])


def _div(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    torch.div(*inputs, out=outputs[0])


def _matmul(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    torch.matmul(*inputs, out=outputs[0])


def _abs(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    torch.abs(inputs[0], out=outputs[0])


def _to_complex(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    outputs[0].copy_(inputs[0])


def _mul_gradient(g: N, operands: tuple[N, N], out: N) -> tuple[N, N]:
    a, b = operands
    return sum_to(g * conjugate(b), a.shape), sum_to(g * conjugate(a), b.shape)


def _div_gradient(g: N, operands: tuple[N, N], out: N) -> tuple[N, N]:
    a, b = operands
    over = call("complex_div", g, conjugate(b))
    return sum_to(over, a.shape), sum_to(-(over * conjugate(out)), b.shape)


def _matmul_gradient(g: N, operands: tuple[N, N], out: N) -> tuple[N, N]:
    a, b = (_transposed(conjugate(x)) for x in operands)
    return sum_to(g @ b, operands[0].shape), sum_to(a @ g, operands[1].shape)


def _transposed(x: N) -> N:
    rank = len(x.shape)
    if rank < 2:
        raise dtype_error("matmul", [x], "complex vectors have no gradient", ["reshape them to matrices"])
    return call("transpose", x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def _abs_gradient(g: N, operands: tuple[N], out: N) -> tuple[N]:
    # Of 0, where there is none, 0, as in torch.
    return (operands[0] * call("where", call("eq", out, 0.0), 0.0, g / out),)


def _to_complex_gradient(g: N, operands: tuple[N], out: N, *, dtype: DType) -> tuple[N]:
    parts = call("view_as_real", g)
    rank = len(parts.shape)
    first = call("slice", parts, starts=(0,) * rank, sizes=(*parts.shape[:-1], 1), steps=(1,) * rank)
    return (call("cast", call("reshape", first, shape=operands[0].shape), dtype=operands[0].dtype),)


def _magnitude(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return operands[0].shape, real_of(cast[0])


def _widened(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return operands[0].shape, attributes["dtype"]


_PAIR: dict[str, Any] = {"arity": (2, 2), "operand_dtypes": _met}
define(
    "complex_mul",
    _mul,
    {},
    result=_broadcast,
    anchor=anchor_rules.broadcast,
    flops=per_element(6),
    reference=torch.mul,
    gradient=_mul_gradient,
    application=transforms.of_complex_maps(2),
    **_PAIR,
)
define(
    "complex_div",
    _div,
    {},
    result=_broadcast,
    anchor=anchor_rules.broadcast,
    flops=per_element(11),
    reference=torch.div,
    gradient=_div_gradient,
    application=transforms.of_complex_maps(2),
    **_PAIR,
)
define(
    "complex_matmul",
    _matmul,
    {},
    result=_product_shape,
    anchor=anchor_rules.product,
    flops=_product_flops,
    reference=torch.matmul,
    gradient=_matmul_gradient,
    application=transforms.of_complex_products,
    **_PAIR,
)
define(
    "complex_abs",
    _abs,
    {},
    operand_dtypes=_as_given,
    result=_magnitude,
    anchor=anchor_rules.broadcast,
    flops=per_element(4),
    reference=torch.abs,
    gradient=_abs_gradient,
    application=transforms.of_complex_maps(1),
)
define(
    "to_complex",
    _to_complex,
    {"dtype": None},
    operand_dtypes=_as_given,
    result=_widened,
    anchor=anchor_rules.broadcast,
    reference=lambda x, *, dtype: x.to(torch.complex128),
    gradient=_to_complex_gradient,
    application=transforms.of_widening,
)


# -- what operators mean on complex operands --------------------------------------------------------------------------


def _made(name: str, attributes: Attributes, operands: tuple[Structure, ...], positions: Positions) -> Structure:
    return interning.intern(OPERATORS[name], attributes, operands, positions)


def _parts(z: Structure) -> Structure:
    if z.operator is OPERATORS["view_as_complex"]:
        return z.operands[0]
    return _made("view_as_real", (), (z,), (0,))


def _joined(parts: Structure) -> Structure:
    return _made("view_as_complex", (), (parts,), (0,))


def _is_complex(x: Structure) -> bool:
    return x.dtype.kind == "complex"


def _cast(attributes: Attributes, operands: tuple[Structure, ...], positions: Positions) -> Structure:
    (x,), (dtype,) = operands, attributes
    if dtype.kind != "complex":
        hints = ["op.real, op.imag and op.abs give real numbers"]
        raise dtype_error("cast", operands, f"complex numbers are no {dtype}", hints)
    if not _is_complex(x):
        return _made("to_complex", (dtype,), operands, positions)
    return _joined(_made("cast", (real_of(dtype),), (_parts(x),), (0,)))


def _as_complex(x: Structure, dtype: DType) -> Structure:
    return x if x.dtype is dtype else _made("cast", (dtype,), (x,), (0,))


def _part_by_part(name: str) -> Callable[[Attributes, tuple[Structure, ...], Positions], Structure]:
    """Both parts alike: sums, differences, negation, and reductions whose axes are counted from the front."""

    def rule(attributes: Attributes, operands: tuple[Structure, ...], positions: Positions) -> Structure:
        if len(operands) == 2:
            met = _met(name, operands, {})
            operands = tuple(_as_complex(x, dtype) for x, dtype in zip(operands, met, strict=True))
        return _joined(_made(name, attributes, tuple(_parts(x) for x in operands), positions))

    return rule


def _scaled(name: str) -> Callable[[Attributes, tuple[Structure, ...], Positions], Structure]:
    """`mul` and `div`: by real numbers part by part, by complex ones in the library."""

    def rule(attributes: Attributes, operands: tuple[Structure, ...], positions: Positions) -> Structure:
        a, b = operands
        if _is_complex(a) and not _is_complex(b):
            return _joined(_made(name, attributes, (_parts(a), _column(b)), positions))
        if name == "mul" and not _is_complex(a):
            return _joined(_made(name, attributes, (_column(a), _parts(b)), positions))
        return _made(f"complex_{name}", (), operands, positions)

    return rule


def _column(x: Structure) -> Structure:
    """A real operand as it lies beside pairs."""
    return _made("reshape", ((*x.shape, 1),), (x,), (0,)) if x.shape else x


def _chosen(attributes: Attributes, operands: tuple[Structure, ...], positions: Positions) -> Structure:
    condition, a, b = operands
    met = _met("where", (a, b), {})
    pair = (_parts(_as_complex(x, dtype)) for x, dtype in zip((a, b), met, strict=True))
    return _joined(_made("where", attributes, (_column(condition), *pair), positions))


def _magnitudes(attributes: Attributes, operands: tuple[Structure, ...], positions: Positions) -> Structure:
    return _made("complex_abs", (), operands, positions)


def _products(attributes: Attributes, operands: tuple[Structure, ...], positions: Positions) -> Structure:
    return _made("complex_matmul", (), operands, positions)


COMPLEX_RULES |= {
    **{name: _part_by_part(name) for name in ("add", "sub", "neg", "sum", "mean")},
    "mul": _scaled("mul"),
    "div": _scaled("div"),
    "cast": _cast,
    "where": _chosen,
    "abs": _magnitudes,
    "matmul": _products,
}

"""Graph IR: `tessera.graph.<operator>` on `tensor` values, all defined by the one table below.

Every operation takes tensors, gives one tensor and is pure. The attribute `dims` may name the symbolic extent of
each result dimension. The operations differ only in arity, attributes and verification rule, so their classes
are made from `OperatorForm` rows; dispatch on them by class (`GRAPH_OPERATIONS["matmul"]`) or by `op.operator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, StringAttr, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_attr_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from tessera.ir.anchors import rules as anchors
from tessera.ir.anchors.anchor import Anchor, AnchorRule, Reduction
from tessera.ir.anchors.pages import paged_attention
from tessera.ir.attributes import Value, integers_of, to_attribute, to_value
from tessera.ir.graph import checks, rules
from tessera.ir.graph import layout_rules as layouts
from tessera.ir.graph import product_rules as products

UNBOUNDED = 1 << 30
_PREFIX = "tessera.graph."


@dataclass(frozen=True, slots=True)
class OperatorForm:
    """What an operation must look like: number of operands, attributes by name and Python kind, and its rule."""

    operands: tuple[int, int]
    rule: checks.Rule
    anchor: AnchorRule | None = None
    """How operands and result are indexed; None where no map says it."""
    required: Mapping[str, type] = field(default_factory=dict)
    optional: Mapping[str, type] = field(default_factory=dict)


class GraphOperation(IRDLOperation):
    """The form all graph operations share."""

    inputs = var_operand_def(TensorType)
    result = result_def(TensorType)
    dims = opt_attr_def(ArrayAttr[StringAttr])
    traits = traits_def(Pure())

    @property
    def operator(self) -> str:
        """The operator's name: `matmul` of `tessera.graph.matmul`."""
        return self.name[len(_PREFIX) :]

    def attribute(self, name: str, default: Value | None = None) -> Value | None:
        """The Python value of attribute `name`, or `default` where it is absent."""
        attribute = self.attributes.get(name)
        return default if attribute is None else to_value(attribute)

    def integers(self, name: str) -> tuple[int, ...]:
        """The integers of the array attribute `name`."""
        return integers_of(self.attributes[name])

    @property
    def form(self) -> OperatorForm:
        """What operations of this operator look like."""
        return _FORMS.get(self.operator) or _declared_forms[self.operator]

    def anchor(self) -> Anchor | None:
        """How operands and result are indexed; None where no map says it. Raises AnchorError for other ranks."""
        return None if self.form.anchor is None else checks.anchor_of(self, self.form.anchor)

    def verify_(self) -> None:
        form = self.form
        least, most = form.operands
        if not least <= len(self.inputs) <= most:
            expected = str(least) if least == most else f"{least} to {most}" if most < UNBOUNDED else f"{least} or more"
            checks.fail(self, f"takes {expected} operands, not {len(self.inputs)}")
        for name, kind in (*form.required.items(), *form.optional.items()):
            if name in self.attributes:
                self._verify_attribute(name, kind)
            elif name in form.required:
                checks.fail(self, f"needs the attribute {name!r}")
        if self.dims is not None and len(self.dims) != len(checks.result_type(self).get_shape()):
            checks.fail(self, f"dims {self.dims} needs one name per result dimension")
        if form.anchor is not None:
            checks.expect_anchor(self, form.anchor)
        form.rule(self)

    def _verify_attribute(self, name: str, kind: type) -> None:
        value = to_value(self.attributes[name])
        if not _is_of_kind(value, kind):
            wanted = "integers" if kind is tuple else kind.__name__
            raise VerifyException(f"{self.operator}: attribute {name!r} should be {wanted}, is {self.attributes[name]}")


def _is_of_kind(value: Value, kind: type) -> bool:
    if kind is object:
        return True
    if kind is tuple:
        # Exact types: a bool is an int to Python, and `axes = [true]` is still a mistake.
        return isinstance(value, tuple) and all(type(element) is int for element in value)
    return type(value) in ((int, float) if kind is float else (kind,))


_UNARY, _BINARY, _TERNARY = (1, 1), (2, 2), (3, 3)
_MATRIX = {"transpose_a": bool, "transpose_b": bool, "accum_dtype": str}
_WINDOW = {"kernel": tuple, "stride": tuple, "padding": tuple, "dilation": tuple, "layout": str}


def _maps(
    names: str, operands: tuple[int, int], rule: checks.Rule, optional: Mapping[str, type] | None = None
) -> dict[str, OperatorForm]:
    return {name: OperatorForm(operands, rule, anchors.broadcast, optional=optional or {}) for name in names.split()}


def _reduction(by: Reduction, rule: checks.Rule) -> OperatorForm:
    return OperatorForm(_UNARY, rule, anchors.reduction(by), {"axes": tuple}, {"keepdims": bool})


_FORMS: dict[str, OperatorForm] = {
    "matmul": OperatorForm(_BINARY, products.contraction, anchors.product, optional=_MATRIX),
    "gemm": OperatorForm(
        (2, 3), products.contraction, anchors.product, optional={"alpha": float, "beta": float, **_MATRIX}
    ),
    "conv2d": OperatorForm(
        _BINARY,
        products.window,
        anchors.convolution,
        {"stride": tuple, "padding": tuple, "dilation": tuple, "groups": int},
    ),
    "flash_attention": OperatorForm((4, 5), products.attention, anchors.attention, {"causal": bool}),
    "attention_logarithms": OperatorForm(
        (4, 5), products.attention_sums, anchors.attention_logarithms, {"causal": bool}
    ),
    **{
        f"attention_d{of}": OperatorForm(
            (7, UNBOUNDED),
            products.attention_sums,
            anchors.attention_cotangent(of),
            {"causal": bool, "scores": object, **({"place": int, "along": str} if of == "x" else {})},
        )
        for of in ("q", "k", "v", "x")
    },
    "scored_attention_logarithms": OperatorForm(
        (4, UNBOUNDED), products.attention_sums, anchors.attention_logarithms, {"scores": object}
    ),
    "scored_attention": OperatorForm((4, UNBOUNDED), products.attention, anchors.attention, {"scores": object}),
    "scaled_attention": OperatorForm(
        (5, 5), products.attention_sums, anchors.scaled_attention, {"causal": bool, "dtype": str}
    ),
    "paged_attention": OperatorForm(
        (6, 6), products.attention, paged_attention, {"causal": bool, "soft_cap": float, "window": int}
    ),
    "depthwise_conv2d": OperatorForm(_BINARY, products.window, anchors.window("add"), _WINDOW, {"multiplier": int}),
    "max_pool2d": OperatorForm(_UNARY, products.window, anchors.window("max"), _WINDOW),
    "sum_pool2d": OperatorForm(_UNARY, products.window, anchors.window("add"), _WINDOW),
    **_maps("add sub mul div pow minimum maximum", _BINARY, rules.arithmetic),
    **_maps("neg abs relu clamp floor ceil round", _UNARY, rules.arithmetic),
    **_maps("exp expm1 log log1p sqrt rsqrt sin cos tanh sigmoid erf silu", _UNARY, rules.floating),
    **_maps("tan asin acos atan sinh cosh asinh acosh atanh log2 log10 exp2 erfinv", _UNARY, rules.floating),
    **_maps("atan2 hypot", _BINARY, rules.floating),
    **_maps(
        "floor_divide bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift",
        _BINARY,
        rules.arithmetic,
    ),
    **_maps("bitwise_not", _UNARY, rules.arithmetic),
    **_maps("gelu", _UNARY, rules.floating, {"approximate": str}),
    **_maps("where", _TERNARY, rules.where),
    **_maps("cast", _UNARY, rules.any_element),
    **_maps("eq ne lt le gt ge", _BINARY, rules.comparison),
    **_maps("logical_and logical_or", _BINARY, rules.logical),
    **_maps("logical_not", _UNARY, rules.logical),
    "sum": _reduction("add", rules.accumulation),
    "prod": _reduction("mul", rules.accumulation),
    "max": _reduction("max", rules.arithmetic),
    "min": _reduction("min", rules.arithmetic),
    "mean": _reduction("add", rules.floating),
    "logsumexp": _reduction("row", rules.floating),
    "argmax": _reduction("row", rules.argument),
    **dict.fromkeys(
        ("softmax", "log_softmax"), OperatorForm(_UNARY, rules.floating, anchors.along_axis, {"axis": int})
    ),
    "layer_norm": OperatorForm((1, 3), rules.normalization, anchors.normalization, {"eps": float}),
    "rms_norm": OperatorForm((1, 2), rules.normalization, anchors.normalization, {"eps": float}),
    "reshape": OperatorForm(_UNARY, layouts.reshape),
    "transpose": OperatorForm(_UNARY, layouts.moving, anchors.transposition, {"permutation": tuple}),
    "broadcast_to": OperatorForm(_UNARY, layouts.moving, anchors.repetition),
    "concat": OperatorForm((1, UNBOUNDED), layouts.moving, anchors.concatenation, {"axis": int}),
    "pad": OperatorForm((1, 2), layouts.pad, anchors.padding, {"mode": str}),
    "slice": OperatorForm(_UNARY, layouts.moving, anchors.cut, optional={"starts": tuple, "steps": tuple}),
    "view_as_real": OperatorForm(_UNARY, layouts.view_as_real, anchors.parts),
    "view_as_complex": OperatorForm(_UNARY, layouts.view_as_complex, anchors.pairs),
    "iota": OperatorForm((0, 0), layouts.iota, anchors.numbering),
    "philox": OperatorForm(_BINARY, rules.arithmetic, anchors.broadcast),
    "constant": OperatorForm((0, 0), layouts.constant, required={"value": object}),
    "library": OperatorForm((1, UNBOUNDED), rules.library, required={"callee": str}),
}


def _define(operator: str, form: OperatorForm) -> type[GraphOperation]:
    title = "".join(part.capitalize() for part in operator.split("_"))
    members = {"name": _PREFIX + operator, "__module__": __name__, "__doc__": form.rule.__doc__}
    return irdl_op_definition(cast(type[GraphOperation], type(f"{title}Op", (GraphOperation,), members)))


GRAPH_OPERATIONS: dict[str, type[GraphOperation]] = {name: _define(name, form) for name, form in _FORMS.items()}
"""Operation class of each operator, by the operator's name."""


_declared_forms: dict[str, OperatorForm] = {}
_declared: dict[str, type[GraphOperation]] = {}


def declare(operator: str, operands: tuple[int, int], anchor: AnchorRule | None) -> None:
    """Makes an operation of an operator that Graph IR does not have by itself, a user's. Its shapes are verified by its
    anchor, its dtypes have been checked by the record where it was called. Such operations are printed, but read from
    text by no program.
    """
    if operator in GRAPH_OPERATIONS:
        return
    form = _declared_forms[operator] = OperatorForm(operands, rules.checked_by_record, anchor)
    if operator not in _declared:
        _declared[operator] = _define(operator, form)


def create(
    operator: str,
    operands: Sequence[SSAValue],
    result_type: TensorType[Attribute],
    attributes: Mapping[str, Value] | None = None,
) -> GraphOperation:
    """An unverified `tessera.graph.<operator>`: attributes are Python values, see `attributes.to_attribute`.

    Raises KeyError for an operator that Graph IR does not have and that nobody declared. The operation is not attached
    to any block.
    """
    interned = {name: to_attribute(value) for name, value in attributes.items()} if attributes else {}
    kind = GRAPH_OPERATIONS.get(operator) or _declared[operator]
    return kind.create(operands=operands, result_types=(result_type,), attributes=interned)

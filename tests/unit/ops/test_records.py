"""Every operator's record is complete and consistent with itself."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import tessera
from tessera import op
from tessera.ir.graph.operations import GRAPH_OPERATIONS
from tessera.ops import OPERATORS, Operator
from tessera.ops.flow.records import NAMES as FLOWS

WITHOUT_DOOR = frozenset(
    "slice scatter_along refit put_sum iota philox checked_index checked_divisor rfft_adjoint irfft_adjoint "
    "checked_pages view_as_real view_as_complex to_complex "
    "complex_mul complex_div complex_matmul complex_abs kernel_spectrum spectrum_adjoint pointwise_mul "
    "sum_pool2d spread put constrain across shard_map to_part from_parts "
    "scatter_extreme scatter_product grouped_outer scored_attention attention_logarithms scored_attention_logarithms "
    "attention_dq attention_dk attention_dv attention_dx".split()
)
"""Written x[a:b], x.reshard(...) and dist.all_gather(...), parts of gradients, what operators are on complex numbers,
what generates numbers, and attention with functions.
"""

DATA = frozenset(
    field.name
    for field in dataclasses.fields(Operator)
    if str(field.type) in ("str", "bool", "FamilyName", "tuple[str, ...]", "tuple[int, int]", "Mapping[str, Any]")
)
"""The fields that say something themselves; all others are rules, which are called."""

RECORDS = [pytest.param(record, id=name) for name, record in OPERATORS.items()]


@pytest.mark.parametrize("record", RECORDS)
def test_no_field_is_missing(record: Operator) -> None:
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name in ("anchor", "result") and value is None:
            assert record.anchor_rule is not None or record.result is not None
            continue
        if field.name in ("known_anchor", "spelled", "flops", "bytes_moved", "integers") and value is None:
            continue  # most operators shard, are counted, and are tuned by their anchor and body alone
        if field.name == "movement":
            assert (value is not None) == (record.family == "layout")
            continue
        if field.name == "application" and value is None:
            record.kind.rule(record.arity[1])  # raises where the family says nothing either
            continue
        assert value is not None, field.name
        if field.name not in DATA:
            assert callable(value), field.name
    assert 0 <= record.arity[0] <= record.arity[1]
    assert OPERATORS[record.name] is record


@pytest.mark.parametrize("record", RECORDS)
def test_bodies_and_gradients_take_the_attributes_by_name(record: Operator) -> None:
    for function in (record.body, record.gradient):
        parameters = inspect.signature(function).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            continue
        named = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
        assert named == set(record.attribute_names), function


@pytest.mark.parametrize("record", RECORDS)
def test_graph_ir_and_the_door_have_the_operator(record: Operator) -> None:
    if record.name == "pin":  # a note on the operation below, and a method of tensors
        assert callable(tessera.Tensor.pin)
        return
    assert ("library" if record.family == "library" else record.name) in GRAPH_OPERATIONS
    if record.joint == FLOWS:  # what loops and branches are
        assert callable(op.scan)
    elif record.joint:  # `topk_values` is the first result of `topk`
        assert callable(getattr(op, record.joint[0].rpartition("_")[0]))
    elif record.name not in WITHOUT_DOOR:
        assert callable(getattr(op, record.name))


def test_attribute_values_are_defaults_but_for_what_is_given() -> None:
    assert OPERATORS["gelu"].attribute_values() == ("none",)
    assert OPERATORS["matmul"].attribute_values(math="tf32") == (None, "tf32")
    with pytest.raises(AssertionError, match="no attributes"):
        OPERATORS["add"].attribute_values(axis=1)

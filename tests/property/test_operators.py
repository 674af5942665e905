"""Every operator on every dtype: what is compiled computes what the record's float64 reference says.

Operands are drawn with all extents, layouts and values that have been seen to break kernels; NaN and infinities must
come out where torch has them. Results land in poisoned memory, so an element that no kernel writes shows. More programs
of all of these `python -m tests.fuzz` draws.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.dtypes import DType, fp8_e4m3, fp8_e5m2
from tessera.ops import OPERATORS, Operator
from tessera.ops.flow.records import NAMES as FLOWS
from tests.property.cases import Draw, draw_case, operand_dtypes
from tests.property.checking import assert_close, evaluated, reference
from tests.property.library_cases import OF_COMPLEX_NUMBERS
from tests.whole import examples, some

ALL_CASES = [
    (record, dtype)
    for record in OPERATORS.values()
    if record.name not in OF_COMPLEX_NUMBERS and record.joint != FLOWS  # tests/unit/doors/test_flow.py
    for dtype in operand_dtypes(record)
]
FLOAT8_CASES = [case for case in ALL_CASES if case[1] in (fp8_e4m3, fp8_e5m2)]
WIDER_CASES = [case for case in ALL_CASES if case not in FLOAT8_CASES]
ELEMENT_CASES = [case for case in WIDER_CASES if case[0].family == "elementwise"]
CASES = [case for case in WIDER_CASES if case not in ELEMENT_CASES]


def _name(part: Operator | DType) -> str:
    return part.name


def _record(case: tuple[Operator, DType]) -> Operator:
    return case[0]


@pytest.mark.parametrize(("record", "dtype"), some(CASES, _record), ids=_name)
@settings(max_examples=examples(3, 8), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_compiled_equals_reference(record: Operator, dtype: DType, data: st.DataObject) -> None:
    _check(data.draw, record, dtype)


# Fewer examples: maps differ in their bodies alone. Layouts and shapes are those of one family of kernels, drawn
# hundreds of times over all of these.
@pytest.mark.parametrize(("record", "dtype"), some(ELEMENT_CASES, _record), ids=_name)
@settings(max_examples=examples(1, 4), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_compiled_equals_reference_of_each_element(record: Operator, dtype: DType, data: st.DataObject) -> None:
    _check(data.draw, record, dtype)


# Few examples: these differ from the 16-bit floats only where elements are read and stored, and all conversions are
# tested (tests/unit/backend/llvm/test_float8.py).
@pytest.mark.parametrize(("record", "dtype"), some(FLOAT8_CASES, _record), ids=_name)
@settings(max_examples=examples(1, 4), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_compiled_equals_reference_in_8_bits(record: Operator, dtype: DType, data: st.DataObject) -> None:
    _check(data.draw, record, dtype)


def _check(draw: Draw, record: Operator, dtype: DType) -> None:
    case = draw_case(draw, record, dtype)
    expected = reference(case.tensor)
    assert_close(evaluated(case.tensor), expected, case.tensor.dtype, case.scale)

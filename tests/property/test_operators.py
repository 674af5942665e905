"""Every operator on every dtype: what is compiled computes what the record's float64 reference says.

Operands are drawn with all extents, layouts and values that have been seen to break kernels; NaN and infinities must
come out where torch has them. Results land in poisoned memory, so an element that no kernel writes shows.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.dtypes import DType
from tessera.ops import OPERATORS, Operator
from tests.property.cases import draw_case, operand_dtypes
from tests.property.checking import assert_close, evaluated, reference

CASES = [
    pytest.param(record, dtype, id=f"{name}-{dtype.name}")
    for name, record in OPERATORS.items()
    for dtype in operand_dtypes(record)
]


@pytest.mark.parametrize(("record", "dtype"), CASES)
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_compiled_equals_reference(record: Operator, dtype: DType, data: st.DataObject) -> None:
    case = draw_case(data.draw, record, dtype)
    expected = reference(case.tensor)
    assert_close(evaluated(case.tensor), expected, case.tensor.dtype, case.scale)

"""The operands of a matrix product as GPUs multiply them: as narrow as they lie in memory, if that changes nothing."""

from __future__ import annotations

from tessera.dtypes import DType, holds, promote_product
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.spec import ContractionSpec


def multiplied(spec: ContractionSpec) -> tuple[Value, Value]:
    """The two operands in the dtypes that matrix units take: two 8-bit floats as they are, of 8 and 16 bits both in the
    16-bit dtype, two 16-bit floats of one dtype as they are; all else in the dtype of the sums.

    The product of two such numbers is exact in fp32, and so is every widening here, so that multiplying before widening
    changes nothing.
    """
    sources = stored(spec.a), stored(spec.b)
    a, b = (source.dtype for source in sources)
    if any(source.operation != "load" or source.dtype.kind != "float" for source in sources):
        return spec.a, spec.b
    if a.itemsize == b.itemsize == 1:
        return sources
    meeting = promote_product(a, b)
    if meeting.itemsize != 2:
        return spec.a, spec.b
    first, second = (_cast(source, meeting) for source in sources)
    return first, second


def multiplied_dtype(spec: ContractionSpec) -> DType:
    """The wider of the dtypes that are multiplied."""
    return max((value.dtype for value in multiplied(spec)), key=lambda dtype: dtype.itemsize)


def stored(value: Value) -> Value:
    """What lies under casts that change none of its numbers: through fp32 to bf16 an 8-bit float stays what it is."""
    chain = [value]
    while chain[-1].operation == "cast":
        chain.append(chain[-1].arguments[0])
    for depth in range(len(chain) - 1, 0, -1):
        if all(holds(outer.dtype, chain[depth].dtype) for outer in chain[:depth]):
            return chain[depth]
    return value


def _cast(value: Value, dtype: DType) -> Value:
    if value.dtype is dtype:
        return value
    return Value("cast", (value,), (), dtype, value.axes, value.stage)

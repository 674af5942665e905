"""MachineCode calls only what the process has: LLVM would have the rest lie at no address."""

from __future__ import annotations

import pytest
import torch

from tessera import op
from tessera.backend.contract import KernelObject
from tessera.backend.llvm.machine_code import engine
from tessera.backend.llvm.machine_code.loading import LoadedObject
from tessera.errors import CompileError
from tessera.target import detect

HALVES = (0.5, -1.5, 3.0, float("inf"), float("nan"))


@pytest.mark.parametrize("name", ["tanh", "sin", "exp", "relu", "sqrt", "neg"])
@pytest.mark.parametrize("number", HALVES)
def test_one_number_of_fp64_becomes_one_of_fp16(name: str, number: float) -> None:
    x = torch.tensor(number, dtype=torch.float64)
    operator = getattr(op, name)
    got = operator(op.cast(x, torch.float16)).torch()
    wanted = getattr(torch, name)(x.half().double()).half()
    torch.testing.assert_close(got, wanted, rtol=2e-3, atol=0, equal_nan=True)
    wide = operator(op.cast(op.broadcast_to(op.tensor(x), (7, 17)), torch.float16)).torch()
    assert torch.equal(wide.nan_to_num(9.0), got.expand(7, 17).nan_to_num(9.0))


def test_an_object_that_calls_what_is_not_there_is_refused() -> None:
    text = "declare void @nowhere_at_all()\ndefine void @kernel() {\n call void @nowhere_at_all()\n ret void\n}\n"
    code = engine.compile_object(text, detect())
    with pytest.raises(CompileError, match="calls nowhere_at_all, which this process does not have"):
        LoadedObject(KernelObject(code, "kernel", 0, (), (), detect().arch, ()))


def test_an_object_that_calls_the_mathematical_library_is_loaded() -> None:
    body = "%y = call double @cos(double %x)\n ret double %y"
    text = f"declare double @cos(double)\ndefine double @kernel(double %x) {{\n {body}\n}}\n"
    code = engine.compile_object(text, detect())
    assert LoadedObject(KernelObject(code, "kernel", 0, (), (), detect().arch, ())).address

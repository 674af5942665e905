"""Pipelines are text, passes are frozen dataclasses, and each leaves sound IR or is named in the error."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import ClassVar

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera.errors import ArgumentError, IRError
from tessera.ir.parsing import parse, print_module
from tessera.ir.passes import IR_PASSES, Pass, PassPipeline, StripNamesPass, VerifyPass

TEXT = "%x = arith.constant 1 : i64\n%y = arith.addi %x, %x : i64"


@dataclass(frozen=True)
class ReversePass(Pass):
    """Moves the first operation to the end, `times` times: an example that breaks dominance."""

    name: ClassVar[str] = "reverse"
    times: int = 1
    labels: tuple[str, ...] = ()

    def apply(self, module: ModuleOp) -> None:
        for _ in range(self.times):
            first = module.body.block.first_op
            assert first is not None
            module.body.block.detach_op(first)
            module.body.block.add_op(first)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The passes of the room and the one above, which this module provides under its own name."""
    module = types.ModuleType("passes_of_a_room_above")
    module.ReversePass = ReversePass  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return {**IR_PASSES, "reverse": f"{module.__name__}:ReversePass"}


def test_a_pipeline_is_read_from_text_and_prints_back(table: dict[str, str]) -> None:
    text = 'verify,reverse{times=2 labels="a","b"},strip-names'
    pipeline = PassPipeline.parse(text, table)
    assert pipeline.passes == (VerifyPass(), ReversePass(2, ("a", "b")), StripNamesPass())
    assert PassPipeline.parse(str(pipeline), table) == pipeline


def test_the_empty_pipeline_does_nothing() -> None:
    module = parse(TEXT)
    before = print_module(module)
    PassPipeline.parse("").run(module)
    assert print_module(module) == before


def test_passes_run_in_order_and_are_reported(table: dict[str, str]) -> None:
    seen: list[str] = []
    pipeline = PassPipeline.parse("reverse{times=2},verify", table)
    pipeline.run(parse(TEXT), lambda step, module: seen.append(f"{step}: {len(list(module.body.block.ops))}"))
    assert seen == ["reverse{times=2}: 2", "verify: 2"]


def test_a_pass_that_breaks_the_ir_is_named(table: dict[str, str]) -> None:
    with pytest.raises(IRError, match=r"after pass reverse: %x is operand 0 of arith\.addi"):
        PassPipeline.parse("reverse", table).run(parse(TEXT))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fuze", "there is no pass 'fuze'"),
        ("reverse{speed=3}", "speed"),
        ("reverse{times=fast}", "expected <class 'int'>"),
        ("verify{", "cannot be read"),
        ("verify verify", "cannot be read"),
    ],
)
def test_pipelines_that_cannot_be_read_are_refused(text: str, message: str, table: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match=message):
        PassPipeline.parse(text, table)


def test_strip_names_leaves_no_name() -> None:
    module = parse("func.func @f(%x: i64) {\n  %y = arith.addi %x, %x : i64\n  func.return\n}")
    StripNamesPass().apply(module)
    assert "%x" not in print_module(module)
    assert "%1 = arith.addi %0, %0" in print_module(module)

"""Kernels over buffers as text: what is read is what was written, and what is wrong is told with its line."""

from __future__ import annotations

import re

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.dtypes import bf16, fp32
from tessera.errors import IRError, ScheduleError, TesseraError, UnsupportedTargetError
from tessera.ir.parsing import parse, parse_with_source, print_module
from tessera.ir.passes import PassPipeline
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.scheduling.families.registry import kernel_family
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.schedule_reader import ReadKernel, read_kernel
from tessera.scheduling.lowering.schedule_writer import kernel_of
from tessera.scheduling.passes import SCHEDULING_PASSES
from tests.unit.scheduling import specs

RELU = """
"tessera.schedule.kernel"() ({
^bb0(%x: memref<?x?xf32, strided<[?, 1]>>, %y: memref<?x?xf32, strided<[?, 1]>>):
  %value = "tessera.schedule.load"(%x) : (memref<?x?xf32, strided<[?, 1]>>) -> f32
  %zero = "tessera.schedule.constant"() {value = 0.0 : f64} : () -> f32
  %result = "tessera.schedule.maximum"(%value, %zero) : (f32, f32) -> f32
  "tessera.schedule.store"(%result, %y) : (f32, memref<?x?xf32, strided<[?, 1]>>) -> ()
}) {sym_name = "relu", family = "map-reduce", arguments = [{axes = ["r", "c"]}, {axes = ["r", "c"]}],
    outer = ["r"], lanes = "c", extents = {r = 8, c = 40},
    knobs = {tile = [1, 16], keep = 0, ahead = false, nontemporal = false, parallel = "outer", fusion = true}}
  : () -> ()
"""


def lowered(text: str, pipeline: str = "lower-schedule") -> str:
    """What the pass makes of a text."""
    module, source = parse_with_source(text, "kernel.mlir")
    PassPipeline.parse(pipeline, SCHEDULING_PASSES).run(module, None, source.located)
    return print_module(module)


def read_back(kernel: ScheduleKernelOp, kind: type[object]) -> ReadKernel:
    """A kernel printed, parsed and read."""
    text = print_module(ModuleOp([kernel]))
    module = parse(text)
    assert print_module(module) == text
    (again,) = module.ops
    assert isinstance(again, ScheduleKernelOp)
    return read_kernel(again, kind)


SPECS = [
    specs.matmul(fp32, batch=("b0",), bias=True, activation="gelu", one_block=False),
    specs.matmul(bf16, prologue="relu"),
    specs.mixed_matmul(bf16, fp32),
    specs.rows("layer_norm", bf16, 2),
    specs.rows("softmax", fp32),
    specs.reduction("mean", fp32, by_rows=False),
    specs.reduction("argmax", fp32, by_rows=True),
    specs.add_scaled(bf16),
    specs.attention(bf16, causal=True, mask=fp32, shared=True),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_specification_is_read_back(spec: object) -> None:
    family = kernel_family(spec)
    schedule = Schedule(tile=(2, 64), parallel="rows", fusion=True, unroll=4)
    extents = {"m": 3, "n": 4}
    found = read_back(kernel_of(spec, family.name, schedule, extents), family.spec)
    assert (found.schedule, list(found.schedule), found.extents) == (schedule, list(schedule), extents)
    again = kernel_of(found.spec, family.name, found.schedule, found.extents)
    assert str(again) == str(kernel_of(spec, family.name, schedule, extents))
    assert found.spec.arguments == spec.arguments  # type: ignore[attr-defined]


def test_a_kernel_written_by_hand_is_lowered() -> None:
    made = lowered(RELU)
    assert "tessera.schedule" not in made
    assert "arith.maximumf" in made
    assert "vector<1x16xf32>" in made
    assert "vector<1x32xf32>" in lowered(RELU.replace("[1, 16]", "[1, 32]"))


def test_extents_may_be_left_out() -> None:
    assert lowered(RELU.replace("extents = {r = 8, c = 40},", "")) == lowered(RELU)


def test_a_target_is_a_gpu_by_its_name() -> None:
    knobs = '{tile = [8, 64], whole_row = false, warps = 4, nontemporal = false, backend = "triton"}'
    made = lowered(re.sub(r"knobs = \{.*?\}", f"knobs = {knobs}", RELU), "lower-schedule{target=h100}")
    assert "vector<8x64xf32>" in made
    assert "warps = 4" in made
    with pytest.raises(UnsupportedTargetError, match="'x1' is no known GPU"):
        lowered(RELU, "lower-schedule{target=x1}")


@pytest.mark.parametrize(
    ("before", "after", "kind", "said"),
    [
        ("tile = [1, 16]", "tile = [1, 16, 4]", ScheduleError, r"10:14: tile = \(1, 16, 4\)"),
        ("tile = [1, 16]", "tile = 0.5", ScheduleError, "10:14: tile = .* is no knob's value"),
        ("keep = 0", "keeps = 0", ScheduleError, "10:5: the knob 'keep' is missing"),
        ("keep = 0", "keep = 0, kept = 1", ScheduleError, "10:40: no knob is called 'kept'"),
        ("keep = 0", "keep = 1024", ScheduleError, r"10:5: .* is not legal for r = 8, c = 40\n.*\n.*\nrule scratch"),
        ('parallel = "outer"', 'parallel = "inner"', ScheduleError, "10:76: parallel = inner"),
        ("map-reduce", "map-reduces", IRError, "8:24: no family is called 'map-reduces'"),
        ('lanes = "c"', "lanes = 1", IRError, "9:20: lanes: 1 : i64 should be a text"),
        ('lanes = "c"', 'lanes = "c", inner = "c"', IRError, "9:33: inner: kernels of this family have outer"),
        ('lanes = "c",', "", IRError, "2:1: lanes: is missing"),
        ('lanes = "c"', 'lanes = "z"', IRError, "2:1: the lowering of maps and reductions cannot take this kernel"),
        ('{axes = ["r", "c"]},', '{axes = ["r"]},', IRError, r"8:47: arguments: .* walks 2 axes, not \['r'\]"),
        ('{axes = ["r", "c"]},', '{axis = ["r"]},', IRError, "8:47: arguments: 'axis' is none of axes"),
        ('"tessera.schedule.maximum"', '"tessera.schedule.and"', IRError, "6:3: and: is of integers, not of f32"),
        ('"tessera.schedule.maximum"', '"tessera.schedule.abs"', IRError, "6:3: abs: takes 1 operands, not 2"),
        ('"tessera.schedule.maximum"', '"tessera.schedule.most"', IRError, "6:14: .*not registered"),
        ("(%value, %zero) :", '(%value, %zero) {axes = ["z"]} :', IRError, "6:3: no argument walks z"),
        (
            '{axes = ["r", "c"]}],',
            '{axes = ["r", "d"]}],',
            IRError,
            "7:3: the value varies along c, which the argument",
        ),
        ("0.0 : f64", '"none"', IRError, '5:3: "none" is no number'),
    ],
)
def test_a_mistake_is_told_with_its_line(before: str, after: str, kind: type[TesseraError], said: str) -> None:
    assert before in RELU
    with pytest.raises(kind) as error:
        lowered(RELU.replace(before, after))
    assert re.search(said, f"{error.value.message}\n" + "\n".join(error.value.hints)), str(error.value)
    assert error.value.message.startswith("kernel.mlir:")


def test_a_product_in_one_block_has_a_tile_that_holds_k() -> None:
    spec = specs.matmul(fp32)
    family = kernel_family(spec)
    extents = {"m": 64, "n": 64, "k": 64}
    start = "lower-schedule{target=neoverse-n1}"
    machine = target.arm_cpu("neoverse-n1")
    schedule = family.start(family.pose(spec, machine)(extents, 1))
    text = str(kernel_of(spec, family.name, schedule, extents))
    assert "tessera.tile.kernel" in lowered(text, start)
    m, n, _ = schedule.integers("tile")
    smaller = str(kernel_of(spec, family.name, schedule.replace(tile=(m, n, 16)), extents))
    with pytest.raises(ScheduleError, match="not legal") as error:
        lowered(smaller, start)
    assert any("one_block" in hint for hint in error.value.hints)

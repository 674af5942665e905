"""`inspect("schedule")`: Schedule IR that parses, verifies, and says the schedule that was chosen."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import op
from tessera.errors import ScheduleError
from tessera.handle import Tensor
from tessera.ir.attributes import to_attribute
from tessera.ir.parsing import parse, print_module
from tessera.ir.schedule import KernelOp, TileOp
from tessera.scheduling.language.annotate import annotate, schedule_of
from tessera.scheduling.language.schedule import Schedule

SCHEDULE = Schedule(tile=(24, 64, 32), micro=(6, 16), unroll=2, pack_a=True, order="rows")

FUSED = """
func.func @program(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %y = "tessera.schedule.kernel"(%a, %b) ({
  ^bb0(%0: tensor<?x?xf32>, %1: tensor<?x?xf32>):
    %2 = "tessera.graph.matmul"(%0, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
    %3 = "tessera.graph.relu"(%2) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "tessera.schedule.yield"(%3) : (tensor<?x?xf32>) -> ()
  }) {sym_name = "matmul_relu_0", family = "contraction"} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %y : tensor<?x?xf32>
}
"""


def kernels_of(module: ModuleOp) -> list[KernelOp]:
    return [operation for operation in module.walk() if isinstance(operation, KernelOp)]


def fused_mlp() -> Tensor:
    product = op.matmul(torch.ones(20, 30), torch.ones(30, 40))
    return op.softmax(op.gelu(product + torch.ones(40)), axis=-1)


def test_knobs_become_attributes_and_read_back_as_the_schedule() -> None:
    module = parse(FUSED)
    (kernel,) = kernels_of(module)
    annotate(kernel, SCHEDULE)
    assert schedule_of(kernel) == SCHEDULE
    (reread,) = kernels_of(parse(print_module(module)))
    assert schedule_of(reread) == SCHEDULE


def test_the_tile_stands_between_the_product_and_its_epilogue() -> None:
    module = parse(FUSED)
    (kernel,) = kernels_of(module)
    annotate(kernel, SCHEDULE)
    product, tile, epilogue, _ = kernel.body.block.ops
    assert isinstance(tile, TileOp)
    assert tile.inputs[0].owner is product
    assert epilogue.operands[0] is tile.result
    assert tile.sizes == (24, 64, 32)
    assert tile.cost_model is not None
    assert tile.cost_model.data == "roofline"


def test_another_schedule_replaces_the_first() -> None:
    module = parse(FUSED)
    (kernel,) = kernels_of(module)
    annotate(kernel, SCHEDULE)
    other = Schedule(tile=(48, 128, 64), pack_b=False)
    annotate(kernel, other)
    assert schedule_of(kernel) == other
    (tile,) = [operation for operation in kernel.body.block.ops if isinstance(operation, TileOp)]
    assert tile.sizes == (48, 128, 64)
    parse(print_module(module))


def test_an_attribute_that_is_no_knob_is_refused() -> None:
    (kernel,) = kernels_of(parse(FUSED))
    kernel.attributes["unroll"] = to_attribute(0.5)
    with pytest.raises(ScheduleError, match="unroll"):
        schedule_of(kernel)


def test_the_schedule_level_of_an_expression_parses_verifies_and_round_trips() -> None:
    text = fused_mlp().inspect("schedule")
    comments = [line for line in text.splitlines() if line.startswith("// ")]
    assert print_module(parse(text)) == text[sum(len(line) + 1 for line in comments) :]
    assert [comment.split(":")[0] for comment in comments] == ["// matmul_add_gelu_0", "// softmax_1"]
    assert all("bound by" in comment for comment in comments)


def test_the_schedule_level_shows_the_schedules_that_run() -> None:
    tensor = fused_mlp()
    product, rows = kernels_of(parse(tensor.inspect("schedule")))
    assert (product.family.data, rows.family.data) == ("contraction", "row")
    chosen = op.kernel(lambda x: op.softmax(x, axis=-1))
    chosen(torch.ones(20, 40)).eval()
    assert schedule_of(rows) == chosen.schedule
    (tile,) = [operation for operation in product.walk() if isinstance(operation, TileOp)]
    assert tile.sizes == schedule_of(product).integers("tile")
    assert not any(isinstance(operation, TileOp) for operation in rows.walk())

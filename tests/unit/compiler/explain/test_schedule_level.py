"""`inspect("schedule")`: Schedule IR that parses, verifies, lowers, and says the schedules that were chosen."""

from __future__ import annotations

import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import op
from tessera.handle import Tensor
from tessera.ir.parsing import parse, print_module
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.scheduling.families.registry import family_called
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.schedule_reader import ReadKernel, read_kernel
from tessera.scheduling.passes import LowerSchedulePass


def kernels_of(module: ModuleOp) -> list[ReadKernel]:
    kernels = [operation for operation in module.walk() if isinstance(operation, ScheduleKernelOp)]
    families = [family_called(kernel.family.data) for kernel in kernels]
    return [read_kernel(each, family.spec) for each, family in zip(kernels, families, strict=True) if family]


def fused_mlp() -> Tensor:
    product = op.matmul(torch.ones(20, 30), torch.ones(30, 40))
    return op.softmax(op.gelu(product + torch.ones(40)), axis=-1)


def test_the_schedule_level_parses_verifies_and_round_trips() -> None:
    text = fused_mlp().inspect("schedule")
    comments = [line for line in text.splitlines() if line.startswith("// ")]
    assert print_module(parse(text)) == text[sum(len(line) + 1 for line in comments) :]
    assert [comment.split(":")[0] for comment in comments] == ["// matmul_add_gelu_0", "// softmax_1"]
    assert all("bound by" in comment for comment in comments)


def test_the_schedule_level_shows_what_runs() -> None:
    tensor = fused_mlp()
    product, rows = kernels_of(parse(tensor.inspect("schedule")))
    assert product.extents == {"m": 20, "n": 40, "k": 30}
    chosen = op.kernel(lambda x: op.softmax(x, axis=-1))
    chosen(torch.ones(20, 40)).eval()
    assert Schedule(rows.schedule) == chosen.schedule


def test_the_schedule_level_lowers_to_the_tile_level() -> None:
    tensor = fused_mlp()
    module = parse(tensor.inspect("schedule"))
    LowerSchedulePass().apply(module)
    tiles = parse(tensor.inspect("tile").replace("builtin.module {\n", "").replace("\n}\n", "\n"))
    assert print_module(module) == print_module(tiles)


def test_a_call_of_a_library_is_a_comment() -> None:
    assert "// fft: a call of a library" in op.fft(torch.ones(8, dtype=torch.complex64)).inspect("schedule")


def test_what_has_no_form_is_a_comment() -> None:
    q = op.tensor(torch.randn(1, 2, 33, 16))
    attended = op.flash_attention(q, q, q, score_mod=lambda score, b, h, i, j: 20 * op.tanh(score / 20))
    text = op.softmax(op.matmul(attended, torch.ones(16, 5)), axis=-1).inspect("schedule")
    assert 'scoring has no form in Schedule IR; level "tile" shows the kernel' in text
    assert kernels_of(parse(text)), "what has one is still there"

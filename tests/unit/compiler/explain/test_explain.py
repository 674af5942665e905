"""`graph.explain`: kernels, rewrites, schedules with their source, predictions, traffic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tessera import Tensor, autotune, graph, numerics, op, profile
from tessera.compiler import pipeline
from tessera.errors import ArgumentError
from tessera.lazy.policy import is_current


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def product() -> Tensor:
    return op.matmul(drawn(45, 67), drawn(67, 83))


def test_a_kernel_is_told_with_its_schedule_prediction_traffic_and_rewrites() -> None:
    (kernel,) = graph.explain(lambda: op.gelu(product() * 1.0).eval()).kernels
    assert kernel.operators == ("matmul", "gelu")
    assert kernel.label == "FusedOp[MatMul+Gelu]"
    assert kernel.rewrites == ("drop-neutral-element", "fuse-contraction")
    assert kernel.shapes == ((45, 67), (67, 83), (45, 83))
    assert kernel.schedule.startswith("tile=")
    assert kernel.predicted_us is not None
    assert kernel.predicted_us > 0
    assert kernel.binding
    assert list(kernel.traffic) == ["L1", "L2", "L3", "DRAM", "scratch"]


def test_what_is_told_is_what_the_plan_launches() -> None:
    expression = product()
    (kernel,) = graph.explain(expression).kernels
    expression.eval()
    (choice,) = pipeline.launched(product().structure)
    assert kernel.schedule == str(choice.schedule)
    assert kernel.name == choice.subject.item.name
    assert kernel.workers == choice.workers


def test_a_tensor_is_explained_without_computing_it() -> None:
    expression = product()
    assert len(graph.explain(expression).kernels) == 1
    assert expression.is_pending
    assert graph.explain(expression.eval()).plans == ()


def test_pins_are_the_users() -> None:
    (kernel,) = graph.explain(lambda: op.matmul(drawn(45, 67), drawn(67, 83), tile_shape=(24, 64, 32))).kernels
    assert kernel.source == "pinned"
    assert "tile=(24,64,32)" in kernel.schedule


def test_without_pins_and_tuning_a_schedule_is_the_default_or_the_models() -> None:
    (kernel,) = graph.explain(product).kernels
    assert kernel.source in ("default", "model")
    with numerics.policy("deterministic"):  # which no model decides
        (kernel,) = graph.explain(product).kernels
    assert kernel.source == "default"


def test_what_was_tuned_says_so(cache_dir: Path) -> None:
    autotune(op.matmul, shapes=(45, 83, 67), method="model")
    pipeline.forget_plans()
    try:
        (kernel,) = graph.explain(product).kernels
        assert kernel.source == "model", "nothing was measured"
        (guess,) = autotune.database.entries()
        autotune.database.put(replace(guess, origin="measured", measured_s=1e-3))
        pipeline.forget_plans()
        (kernel,) = graph.explain(product).kernels
        assert kernel.source == "tuned"
        assert kernel.schedule == str(autotune.load(op.matmul, (45, 83, 67)).schedule)
        with profile.session() as session:
            product().eval()
        (record,) = [record for record in session.records() if record.kind == "kernel"]
        assert (record.schedule, record.schedule_source) == (kernel.schedule, "tuned")
    finally:
        pipeline.forget_plans()


def test_every_evaluation_of_a_step_is_told_once() -> None:
    def step() -> None:
        for _ in range(3):
            op.softmax(drawn(5, 6)).eval()
        op.exp(drawn(5, 6)).eval()

    assert [kernel.operators for plan in graph.explain(step).plans for kernel in plan.kernels] == [
        ("softmax",),
        ("exp",),
    ]
    assert is_current(None)


def test_what_goes_through_memory_has_its_reason() -> None:
    (plan,) = graph.explain(lambda: op.softmax(product())).plans
    assert len(plan.kernels) == 2
    (line,) = plan.through_memory
    assert "through memory" in line
    assert plan.predicted_us == pytest.approx(sum(kernel.predicted_us or 0 for kernel in plan.kernels))


def test_a_call_of_a_library_has_no_schedule_and_no_prediction() -> None:
    (plan,) = graph.explain(lambda: op.topk(drawn(9, 8), 3)).plans
    (call,) = plan.kernels
    assert (call.source, call.predicted_us, call.schedule) == (None, None, "")
    assert plan.predicted_us is None
    assert "a call of a library" in str(plan)


def test_the_text_tells_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    explained = graph.explain(lambda: op.softmax(op.gelu(product())))
    shown = capsys.readouterr().out
    assert shown == f"{explained}\n"
    for kernel in explained.kernels:
        for text in (kernel.label, kernel.name, f"{kernel.schedule} ({kernel.source})", f"waits for {kernel.binding}"):
            assert text in shown
    assert "fuse-contraction: gelu . matmul -> kernel" in shown
    assert f"with {explained.kernels[0].workers} worker" in shown


def test_nothing_is_told_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert graph.explain(lambda: None).plans == ()
    assert capsys.readouterr().out == "nothing is computed\n"


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"graph\.explain takes a function"):
        graph.explain(3)  # type: ignore[arg-type]


def test_an_error_of_the_step_passes_and_ends_explaining() -> None:
    def failing() -> None:
        raise KeyError("of the user's")

    with pytest.raises(KeyError):
        graph.explain(failing)
    assert is_current(None)


def test_kernels_of_other_devices_are_told_too() -> None:
    x = op.tensor(drawn(33, 16), device="interpreter")
    (plan,) = graph.explain(op.matmul(x, op.tensor(drawn(16, 8), device="interpreter"))).plans
    assert plan.device == "interpreter"
    (kernel,) = plan.kernels
    assert kernel.label.startswith("MatMul[")
    assert kernel.source == "model"
    assert kernel.predicted_us is not None
    assert kernel.workers is None
    assert kernel.traffic == {}


def test_flops_of_a_product_whose_operand_is_turned() -> None:
    """Rewrites make a flag of the transpose: the operand's extents are in the kernel as they lie."""
    a, b = torch.randn(6, 8), torch.randn(10, 8)
    with profile.session() as session:
        op.matmul(op.exp(a), op.transpose(op.exp(b))).eval()
    assert max(record.flops or 0 for record in session.records()) >= 2 * 6 * 10 * 8

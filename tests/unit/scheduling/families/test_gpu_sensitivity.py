"""Which choices on a GPU hang on constants that nobody measured, and what a wrong one would cost."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tessera import op, target
from tessera.compiler.device.gpu import gpu_problems
from tessera.dtypes import bf16, fp32
from tessera.scheduling.families.attention.space import AttentionProblem
from tessera.scheduling.families.gpu_sensitivity import WORTH, sensitivities
from tessera.scheduling.families.product.gpu.choice import default_schedule
from tessera.scheduling.families.product.gpu.problem import GpuContractionProblem
from tessera.scheduling.families.registry import gpu_model
from tessera.scheduling.model.gpu_constants import KNOWN, Constant, GpuConstants, known
from tessera.scheduling.model.gpu_machine import gpu_machine

H100 = target.gpu("h100")


def product(m: int, n: int, k: int) -> GpuContractionProblem:
    return GpuContractionProblem(m=m, n=n, k=k, batch=1, operand=bf16, accumulator=fp32, output=bf16, target=H100)


SIZES = ((512, 512, 512), (4096, 4096, 4096), (128, 4096, 4096))
PROBLEMS = {f"{m} x {n} x {k}": product(m, n, k) for m, n, k in SIZES}


def rows(gpu: str) -> list[Any]:
    """Problems of row-wise kernels of the shapes that are bound by different things."""
    shapes = ((64, 128), (8192, 4096), (64, 65536))
    return [each for shape in shapes for each in gpu_problems(op.softmax, shape, "bf16", target.gpu(gpu)).values()]


def attention(gpu: str) -> AttentionProblem:
    """Few heads of 64, whose exponentials take as long as products."""
    return AttentionProblem((64,), 2048, 2048, 64, 64, False, bf16, fp32, target.gpu(gpu), 1)


def test_each_constant_says_what_it_is_where_it_is_from_and_where_it_may_lie() -> None:
    assert [each.name for each in known()] == [each.name for each in fields(GpuConstants)]
    for each in known():
        assert each.value == getattr(KNOWN, each.name)
        assert each.least <= each.value <= each.most
        assert each.least < each.most
        assert each.unit
        assert each.meaning
        assert each.source


@pytest.mark.parametrize("constant", known(), ids=lambda constant: constant.name)
def test_every_constant_moves_some_estimate(constant: Constant) -> None:
    """One that no model reads would be listed for nothing."""
    ends = [end for end in (constant.least, constant.most) if end != constant.value]
    for gpu, operand in (("h100", bf16), ("h100", fp32), ("b200", bf16)):
        made = target.gpu(gpu)
        machine = gpu_machine(made)
        moved = [gpu_machine(made, constants=replace(KNOWN, **{constant.name: end})) for end in ends]
        sizes = ((300, 4096, 4096), (8192, 8192, 8192), (16, 4096, 4096), (4096, 4096, 2048))
        products = [replace(product(*size), operand=operand, target=made) for size in sizes]
        for problem in (*products, *rows(gpu), attention(gpu)):
            model = gpu_model(problem)
            for found in model.best(problem, 40, machine):
                again = [model.estimate(problem, found.schedule, each, None) for each in moved]
                if any((each.seconds, each.terms) != (found.seconds, found.terms) for each in again):
                    return
    raise AssertionError(constant.name)


def test_what_flips_is_better_under_the_changed_constant_by_what_is_said() -> None:
    found = sensitivities(H100, PROBLEMS)
    assert {each.constant.name for each in found} == {each.name for each in known()}
    losses = [each.loss for each in found]
    assert losses == sorted(losses, reverse=True)
    flips = [flip for each in found for flip in each.flips]
    assert flips, "the wait for memory decides how many stages there are"
    for flip in flips:
        machine = gpu_machine(H100, constants=replace(KNOWN, **{flip.constant.name: flip.at}))
        model, problem = gpu_model(PROBLEMS[flip.label]), PROBLEMS[flip.label]
        taken, instead = (model.estimate(problem, each, machine, None).seconds for each in (flip.taken, flip.instead))
        assert flip.taken != flip.instead
        assert taken / instead - 1 == pytest.approx(flip.loss)
        assert flip.loss > WORTH


def test_what_is_taken_is_what_the_compiler_takes_in_parts_of_k_too() -> None:
    """A product of few rows and columns is cut along K, for multiprocessors that would be idle."""
    problem, machine = product(128, 128, 16384), gpu_machine(H100)
    chosen = gpu_model(problem).chosen(problem, machine)
    assert chosen.schedule.integer("split_k") > 1
    assert chosen.schedule == default_schedule(problem)
    assert chosen.seconds < gpu_model(problem).best(problem, 1, machine)[0].seconds

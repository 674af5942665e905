"""The model's candidates held against the compiler: what spills goes, the rest is ranked by the compiler's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tessera import op, target
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.gpu import gpu_kernels, gpu_sites
from tessera.compiler.device.refinement import Refined, refined
from tessera.errors import CompileError
from tessera.target import Target

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from xdsl.dialects.builtin import ModuleOp

from tessera.backend.contract import LaunchFacts, StaticFacts
from tessera.backend.triton import TritonBackend

GPU = target.gpu("sm90")
FACTS = StaticFacts(
    compiler="Triton 3.6.0",
    registers=168,
    spill_bytes=0,
    shared_bytes=147456,
    warps=8,
    stages=3,
    tensor_memory_columns=0,
    instructions={},
    operations={},
    launch=LaunchFacts(),
    image_sha256="",
    source="",
)
Answer = StaticFacts | CompileError


class Answering(TritonBackend):
    """Says of candidate number `i` what `answers(i)` gives."""

    def __init__(self, answers: Callable[[int], Answer]) -> None:
        self._answers = answers

    def facts(self, modules: Sequence[ModuleOp], target: Target) -> list[Answer]:
        """The answers, in order."""
        return [self._answers(index) for index in range(len(modules))]


def refine(answers: Callable[[int], Answer], count: int = 3) -> Refined:
    """The refinement of one product, of whose candidates number `i` the compiler says `answers(i)`."""
    sites = gpu_sites(op.matmul, (4096, 4096, 4096), "bf16", GPU)
    (found,) = refined(sites, DeviceCompiler(GPU, backend=Answering(answers)), count)
    return found


def test_the_default_is_kept_where_the_compiler_agrees() -> None:
    (site,) = gpu_sites(op.matmul, (4096, 4096, 4096), "bf16", GPU)
    found = refine(lambda index: FACTS)
    assert found.site.launch.schedule == site.launch.schedule
    assert found.pruned == ()
    assert found.estimate is not None
    assert "Triton 3.6.0" in found.estimate.explain()


def test_a_schedule_that_spills_makes_room_for_the_next() -> None:
    found = refine(lambda index: FACTS if index else replace(FACTS, spill_bytes=64))
    assert [each.reason for each in found.pruned] == ["spills 64 bytes a thread"]
    assert found.site.launch.schedule != found.pruned[0].schedule


def test_what_does_not_compile_or_fit_is_pruned_with_the_reason() -> None:
    answers: list[Answer] = [CompileError("out of something"), replace(FACTS, shared_bytes=300_000), FACTS]
    found = refine(lambda index: answers[index])
    assert found.facts is FACTS
    reasons = [each.reason for each in found.pruned]
    assert reasons == ["does not compile: out of something", "fits no multiprocessor, for its shared memory"]


def test_where_all_spill_what_was_asked_for_is_kept() -> None:
    (site,) = gpu_sites(op.matmul, (4096, 4096, 4096), "bf16", GPU)
    found = refine(lambda index: replace(FACTS, spill_bytes=8 + index))
    assert found.site.launch.schedule == site.launch.schedule
    assert isinstance(found.facts, StaticFacts)
    assert found.facts.spill_bytes == 8
    assert len(found.pruned) == 2


def test_no_rivals_where_none_are_asked_for() -> None:
    seen: list[int] = []

    def answer(index: int) -> Answer:
        seen.append(index)
        return FACTS

    assert refine(answer, 0).pruned == ()
    assert seen == [0]


def test_real_candidates_are_compiled_and_the_one_taken_does_not_spill() -> None:
    (kernel,) = gpu_kernels(op.matmul, (1024, 1024, 1024), "bf16", target.gpu("sm80"), candidates=3)
    assert isinstance(kernel.facts, StaticFacts)
    assert kernel.facts.spill_bytes == 0
    assert kernel.estimate is not None
    assert kernel.estimate.schedule == kernel.schedule
    assert kernel.estimate.work.resources.registers == kernel.facts.registers

"""What was measured of cores decides schedules, but none under a policy that fixes the order of sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import numerics, op, settings
from tessera.backend.llvm.backend import LLVMBackend
from tessera.backend.registry import cpu_backend
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.dtypes import bf16
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.scheduling.families.product import forms
from tessera.target import CoreFacts, Target, detect
from tests.unit.scheduling import specs
from tests.unit.scheduling.problems import AMX

SMALL = CoreFacts(2, 4, 2, 4, 2, 3e-10, 64, 16, 1e-3, caches=(("L1", 8 << 10), ("L2", 64 << 10), ("L3", 1 << 20)))
PLAIN = DeviceCompiler(detect(), cpu_backend())
MEASURED = DeviceCompiler(detect().with_core(SMALL), cpu_backend())

PAIRS = replace(AMX, arch="cooperlake", features=AMX.features - {"amx-tile", "amx-bf16", "amx-int8"})
"""A CPU that multiplies bf16 in pairs, but has no matrix unit."""


def product(compiler: DeviceCompiler) -> Launch:
    """How a compiler has a matrix product run."""
    (launch,) = launches_of_operator(op.matmul, (400, 3000, 300), "fp32", compiler)
    return launch


def test_a_compiler_heeds_what_was_measured() -> None:
    plain, measured = product(PLAIN), product(MEASURED)
    assert measured.schedule.integers("tile") < plain.schedule.integers("tile")
    if plain.choice.workers > 1:
        # 720 MFLOP are worth 64 times the usual cost of waking a worker, a twentieth of them is not.
        (few,) = launches_of_operator(op.matmul, (20, 3000, 300), "fp32", MEASURED)
        assert (measured.choice.workers > 1, few.choice.workers) == (True, 1)


@pytest.mark.parametrize("mode", ["deterministic", "strict"])
def test_a_fixed_order_of_sums_follows_from_no_measurement(mode: numerics.Mode) -> None:
    with numerics.policy(mode):
        plain, measured = product(PLAIN), product(MEASURED)
    assert measured.schedule == plain.schedule
    assert measured.subject.target == plain.subject.target == detect()
    assert product(MEASURED).schedule != plain.schedule


def test_the_compiler_of_this_machine_asks_its_backend_unless_told_not_to(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(self: object, described: Target) -> CoreFacts:
        return SMALL

    monkeypatch.setattr(type(cpu_backend()), "core_facts", found)
    made = compilers.kernel_compiler.__wrapped__
    with settings.override(core_facts=True):
        assert made().target.core == SMALL
    assert made().target.core is None


@pytest.mark.parametrize(("rate", "in_pairs"), [(0.5, False), (2.0, True)])
def test_bf16_is_multiplied_in_pairs_where_the_machine_was_not_seen_to_be_slow_at_it(
    rate: float, in_pairs: bool
) -> None:
    machine = PAIRS.with_core(replace(SMALL, dots=(("bf16", rate),)))
    compiler = DeviceCompiler(machine, cpu_backend())
    (launch,) = launches_of_operator(op.matmul, (21, 40, 37), "bf16", compiler)
    module = compiler.tile_ir(launch.subject, launch.schedule)
    assert ("vdpbf16ps" in LLVMBackend().emit(module, machine, "asm")) == in_pairs
    matmul = specs.matmul(bf16)  # constants are packed as they are multiplied
    assert forms.form_of(matmul, matmul.b, 64, machine).panels.group == (2 if in_pairs else 1)
    others = (op.conv2d, [(2, 32, 12, 12), (48, 32, 3, 3)]), (op.flash_attention, [(1, 2, 64, 32)] * 3)
    for operator, shapes in others:
        problem: Any = compiler.problem(launches_of_operator(operator, shapes, "bf16", compiler)[-1].call)
        assert problem.pairs == in_pairs
    a, b, out = torch.randn(21, 37).bfloat16(), torch.randn(37, 40).bfloat16(), torch.empty(21, 40).bfloat16()
    run_kernel(module, [a, b.mT, out])  # axes in the order of their names
    torch.testing.assert_close(out, a @ b, atol=0.03, rtol=0.02)
    with numerics.policy("deterministic"):  # which knows no rates
        (fixed,) = launches_of_operator(op.matmul, (21, 40, 37), "bf16", compiler)
    assert "vdpbf16ps" in LLVMBackend().emit(compiler.tile_ir(fixed.subject, fixed.schedule), machine, "asm")


def test_a_matrix_unit_is_used_however_fast_it_was_seen_to_be() -> None:
    assert AMX.with_core(replace(SMALL, dots=(("bf16", 8.0),))).multiplies_bf16_pairs
    assert not PAIRS.with_core(replace(SMALL, dots=(("bf16", 0.5),))).multiplies_bf16_pairs
    assert PAIRS.with_core(SMALL).multiplies_bf16_pairs

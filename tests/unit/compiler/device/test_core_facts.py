"""What was measured of cores decides schedules, but none under a policy that fixes the order of sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import numerics, op, settings
from tessera.backend.registry import cpu_backend
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.target import CoreFacts, Target, detect

SMALL = CoreFacts(2, 4, 2, 4, 2, 3e-10, 64, 1e-3, caches=(("L1", 8 << 10), ("L2", 64 << 10), ("L3", 1 << 20)))
PLAIN = DeviceCompiler(detect(), cpu_backend())
MEASURED = DeviceCompiler(detect().with_core(SMALL), cpu_backend())


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

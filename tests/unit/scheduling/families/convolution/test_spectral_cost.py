"""What spectral convolutions cost follows the machine's rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.scheduling.families.convolution.spectral_cost import CALL_SECONDS, SpectralProblem, spectral_seconds
from tessera.scheduling.model.machine import Machine, machine
from tests.unit.scheduling.problems import AVX512

PROBLEM = SpectralProblem(2, 16, 16, 1, 64, 48, 64, 64, 4, kept=True, native=True, workers=1)
RATES = machine(None, AVX512, 1)


def beside_the_call(rates: Machine) -> float:
    return spectral_seconds(PROBLEM, rates) - CALL_SECONDS


def faster(arithmetic: float, memory: float) -> Machine:
    flops = {dtype: arithmetic * rate for dtype, rate in RATES.flop_per_s.items()}
    return replace(RATES, flop_per_s=flops, byte_per_s={**RATES.byte_per_s, "DRAM": memory * RATES.byte_per_s["DRAM"]})


def test_a_machine_of_twice_the_rates_takes_half_the_time() -> None:
    assert beside_the_call(faster(2, 2)) == pytest.approx(beside_the_call(RATES) / 2)


def test_arithmetic_and_memory_count_each() -> None:
    usual = beside_the_call(RATES)
    assert usual / 2 < beside_the_call(faster(2, 1)) < usual
    assert usual / 2 < beside_the_call(faster(1, 2)) < usual


def test_on_the_core_that_shares_were_measured_on_rates_are_those_measured() -> None:
    """Zen 4: 15 GFLOP/s of transforms, 40 of products, 10 GB/s."""
    core = replace(RATES, flop_per_s={"fp32": 117.6e9}, byte_per_s={"DRAM": 39.6e9})
    transforms = (2 * 16 * (64 + 48)) * 2.5 * 64 * 6 + (2 * 16 * 2) * 5.0 * 64 * 6 * 33
    products, moved = 8.0 * 2 * 256 * 64 * 33, (2 * 16 * (64 + 48)) * 64 * 4 + PROBLEM.spectra_bytes
    expected = transforms / 15e9 + products / 40e9 + moved / 10e9
    assert beside_the_call(core) == pytest.approx(expected, rel=0.01)

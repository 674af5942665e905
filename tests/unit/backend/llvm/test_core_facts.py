"""Measuring cores: the probes do what they are counted for, and what is measured is kept, with its doubt."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tessera.backend.llvm import core_facts
from tessera.backend.llvm.ceilings import RETRY_S
from tessera.backend.llvm.machine_code.library import compile_text
from tessera.backend.llvm.machine_code.loading import load_object
from tessera.backend.llvm.native import probe_ir
from tessera.target import CoreFacts, Target, detect
from tessera.target.stored_ceilings import stored_core
from tests.unit.scheduling.problems import AMX, AVX2

MADE = CoreFacts(2, 4, 2, 4, 2, 3e-10, 64, 16, 1e-6, date=datetime.now(UTC).isoformat())


def called(text: str, name: str, repetitions: int, source: ctypes.Array[ctypes.c_int64]) -> int:
    """The word that a probe leaves in its sink."""
    sink = (ctypes.c_int64 * 2)()
    table = (ctypes.c_int64 * 2)(ctypes.addressof(source), 0)
    descriptors = (ctypes.c_int64 * 2)(repetitions, 0)
    library = load_object(compile_text(text))
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    signature(library.address(name))(table, descriptors, 0, 1, sink)
    return sink[0]


def test_every_step_of_the_chain_is_taken() -> None:
    value, added = 1, 12345
    for step in range(3 * probe_ir.CHAIN_CYCLES):
        value = value ^ added if step % 2 else (value + added) % 2**64
    text = probe_ir.module([probe_ir.chain_probe("chain")], [])
    assert called(text, "chain", 3, (ctypes.c_int64 * 1)(added)) % 2**64 == value


def test_a_chase_goes_from_address_to_address() -> None:
    places = (ctypes.c_int64 * 5)()
    base = ctypes.addressof(places)
    places[:] = [base + 8 * ((number + 2) % 5) for number in range(5)]  # 0, 2, 4, 1, 3
    text = probe_ir.module([probe_ir.chase_probe("chase")], [])
    assert called(text, "chase", 2, places) == base + 8 * (2 * 2 * probe_ir.CHASE_STEPS % 5)


@pytest.mark.parametrize("machine", [AVX2, AMX, replace(AMX, features=AMX.features - {"amx-tile"})])
def test_probes_are_code_for_each_kind_of_machine(machine: Target) -> None:
    text = core_facts.probe_text(machine)
    llvm.parse_assembly(text).verify()
    assert ("vpdpbusd.512(<16 x i32> %acc" in text) == (machine.has_avx512vnni and not machine.has_amx_int8)


def test_sizes_end_where_loads_begin_to_take_longer() -> None:
    assert core_facts.within([(1, 1.0), (2, 0.9), (4, 1.1), (8, 2.5), (16, 0.9)], 2.0) == 4
    assert core_facts.within([(1, 1.0), (2, 1.9)], 2.0) is None


def test_rows_are_followed_up_to_where_loads_are_nearer_to_those_in_no_order() -> None:
    busy_first = [(4, 14.0), (8, 3.0), (16, 6.0), (32, 11.0), (64, 6.0)]
    assert core_facts.followed(busy_first, 14.0) == 16
    assert core_facts.followed([(4, 9.0), (8, 9.0)], 9.0) == 0  # nothing is fetched ahead


def test_this_machine_is_measured() -> None:
    found = core_facts.measure(detect(), waited=lambda: 0.0)
    assert CoreFacts.from_json(found.to_json()) == found
    assert 1e-11 < found.cycle_s < 1e-7
    assert (found.wake_s > 0) == (detect().cores > 1)
    assert dict(found.dots).keys() <= {"bf16", "int8"}
    stated = {level.name: level.size_bytes for level in detect().memory}
    assert all(0 < kept < stated[level] for level, kept in found.caches)
    assert not found.in_doubt
    assert found.date


def test_what_others_disturbed_is_in_doubt_and_says_nothing_of_caches() -> None:
    clock = map(float, itertools.count())
    found = core_facts.measure(replace(detect(), memory=()), waited=lambda: next(clock))
    assert found.in_doubt
    assert found.caches == ()


def test_facts_are_measured_once_and_again_where_they_are_in_doubt(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (datetime.now(UTC) - timedelta(seconds=2 * RETRY_S)).isoformat()
    busy = replace(MADE, fma_per_cycle=1, wake_s=5e-3, in_doubt=True, date=old)
    answers = iter([busy, MADE])
    monkeypatch.setattr(core_facts, "measure", lambda described: next(answers))
    assert core_facts.known(detect()) == stored_core(detect()) == busy
    assert core_facts.known(detect()) == MADE  # the busy one is old enough to be measured again
    assert core_facts.known(detect()) == stored_core(detect()) == MADE


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_dir.write_text("not a folder")
    monkeypatch.setattr(core_facts, "measure", lambda described: MADE)
    assert core_facts.known(detect()) == MADE
    assert stored_core(detect()) is None

"""Measuring ceilings: the probes do what they claim, and figures are kept per CPU."""

from __future__ import annotations

import ctypes
import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tessera import target
from tessera.backend.llvm import ceilings
from tessera.backend.llvm.ceilings import Probe, ProbeSample
from tessera.backend.llvm.machine_code.library import compile_text
from tessera.backend.llvm.machine_code.loading import load_object
from tessera.backend.llvm.native import probe_ir
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling, MemoryLevel, Target
from tessera.target.stored_ceilings import stored_ceilings

SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
MADE = Ceilings(
    arch="x", name="x", source="measured", compute=(ComputeCeiling("fp32", 1, 1e9),), memory=(), date="2026-01-01"
)


SMALL = ceilings.ProbeEffort(rounds=(4, 4), sample_s=1e-4, dram_bytes=(1 << 20, 1 << 20))
"""A single group of short samples, and a small sweep of main memory."""


def run_probe(text: str, name: str, repetitions: int, nbytes: int, worker: int = 0) -> tuple[bytes, bytes, bytes]:
    """Source, destination and sink after one call; the source holds 1.0 as floats, the destination sevens."""
    library = load_object(compile_text(text))
    block = 4096
    memory = ctypes.create_string_buffer(4 * block)
    base = -(-ctypes.addressof(memory) // 64) * 64
    source, destination, sink = base, base + block, base + 2 * block
    (ctypes.c_float * (block // 4)).from_address(source)[:] = [1.0] * (block // 4)
    ctypes.memset(destination, 7, block)
    ctypes.memset(sink, 0, 1024)
    table = (ctypes.c_int64 * 2)(source, destination)
    descriptors = (ctypes.c_int64 * 2)(repetitions, nbytes)
    SIGNATURE(library.address(name))(table, descriptors, worker, 2, sink)
    return ctypes.string_at(source, block), ctypes.string_at(destination, block), ctypes.string_at(sink, 1024)


def test_compute_probe_does_the_operations_it_is_counted_for() -> None:
    text = probe_ir.module(
        [probe_ir.fma_probe("probe", 8, "float", "f32", 12)], [probe_ir.fma_declaration(8, "float", "f32")]
    )
    _, _, sink = run_probe(text, "probe", repetitions=100, nbytes=0)
    # Every accumulator grows by 1 * 1 a repetition.
    assert list((ctypes.c_float * 96).from_buffer_copy(sink)) == [100.0] * 96


@pytest.mark.parametrize("access", ["copy", "copy_nt", "write", "write_nt", "read"])
def test_memory_probe_touches_its_workers_part_and_no_more(access: str) -> None:
    text = probe_ir.module([probe_ir.memory_probe("probe", access, 32)], [])
    source, destination, _ = run_probe(text, "probe", repetitions=2, nbytes=1024, worker=1)
    expected = {"copy": source[1024:2048], "write": bytes(1024), "read": b"\7" * 1024}[access.removesuffix("_nt")]
    assert destination == b"\7" * 1024 + expected + b"\7" * 2048


def test_probes_of_a_narrower_cpu_are_other_instructions() -> None:
    wide = replace(target.detect(), vector_bits=512, vector_registers=32, features=frozenset())
    narrow = replace(wide, vector_bits=256, vector_registers=16)
    assert "<16 x float>" in ceilings.probe_text(wide)
    assert "<16 x float>" not in ceilings.probe_text(narrow)
    assert "dpbf16" not in ceilings.probe_text(wide)
    assert compile_text(ceilings.probe_text(narrow))


def test_measured_ceilings_cover_arithmetic_and_every_level() -> None:
    described = target.detect()
    told: list[float] = []
    made = ceilings.measure(described, (1,), progress=told.append, effort=SMALL, waited=lambda: 0.0)
    assert told == [0.25, 0.5, 0.75, 1.0]
    assert made.in_doubt == ()
    single, double = made.flop_per_s("fp32", 1), made.flop_per_s("fp64", 1)
    assert single is not None
    assert double is not None
    assert (made.flop_per_s("bf16", 1) is not None) == described.has_avx512bf16
    levels = {row.level for row in made.memory}
    assert {"L1", "DRAM"} <= levels
    assert {row.access for row in made.memory if row.level == "DRAM"} == {
        "read",
        "copy",
        "copy_nt",
        "write",
        "write_nt",
    }
    assert made.source == "measured"
    assert made.date
    assert Ceilings.from_json(made.to_json()) == made


def test_more_workers_can_do_at_least_what_fewer_can() -> None:
    one, two = Probe("f", "fp32", "", 1, 0, 1.0), Probe("f", "fp32", "", 2, 0, 1.0)
    other = Probe("g", "fp64", "", 1, 0, 1.0)
    assert ceilings.at_least_as_fewer({one: 10.0, two: 4.0, other: 99.0}) == {one: 10.0, two: 10.0, other: 99.0}


def test_only_full_groups_of_undisturbed_samples_count() -> None:
    samples = [
        ProbeSample(rate, waited) for rate, waited in [(9, 0.0), (1, 0.5), (8, 0.01), (7, 0.0), (6, 0.0), (5, 0.0)]
    ]
    assert ceilings.medians(samples) == [8]
    assert ceilings.medians(samples[:2]) == []


@pytest.mark.parametrize(
    ("found", "expected"), [([100.0, 99.0, 50.0], True), ([100.0, 90.0, 90.0], False), ([100.0], False), ([], False)]
)
def test_settled_means_the_greatest_two_agree(found: list[float], expected: bool) -> None:
    assert ceilings.settled(found) is expected


def test_figures_without_undisturbed_samples_are_named() -> None:
    clock = map(float, itertools.count())
    found = ceilings.measure(target.detect(), worker_counts=(1,), effort=SMALL, waited=lambda: next(clock))
    assert {"fp32", "L1 read", "DRAM copy_nt"} <= set(found.in_doubt)
    assert found.flop_per_s("fp32", 1) is not None


def test_working_sets_lie_in_their_level() -> None:
    levels = (
        MemoryLevel("L1", 32 << 10, 64, 1),
        MemoryLevel("L2", 1 << 20, 64, 1),
        MemoryLevel("L3", 32 << 20, 64, 8),
        MemoryLevel("DRAM", 64 << 30, 64, 8),
    )
    described = replace(target.detect(), memory=levels, vector_bits=512)
    l1, l2, l3, dram = (ceilings.working_set(described, level, 1) for level in levels)
    assert (l1, l2, l3, dram) == (8 << 10, 256 << 10, 8 << 20, 128 << 20)
    # Eight threads leave each 4 MiB of the third level; 64 would leave it less than the second level holds.
    assert ceilings.working_set(described, levels[2], 8) == 0
    assert ceilings.working_set(described, levels[2], 2) == 4 << 20
    assert all(size % (8 * 64) == 0 for size in (l1, l2, l3, dram))


def test_ceilings_are_measured_once_and_kept(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(described: Target, progress: object = None) -> Ceilings:
        calls.append(described)
        return MADE

    monkeypatch.setattr(ceilings, "measure", measure)
    assert stored_ceilings() is None
    assert ceilings.measured() == ceilings.measured() == stored_ceilings() == MADE
    assert len(calls) == 1
    (file,) = (cache_dir / "ceilings").iterdir()
    assert json.loads(file.read_text())["date"] == "2026-01-01"


def test_figures_of_a_busy_machine_are_kept_with_their_doubt_and_measured_again_later(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    busy = replace(MADE, in_doubt=("fp32", "L1 read"), date=now.isoformat())
    old = replace(busy, date=(now - timedelta(seconds=2 * ceilings.RETRY_S)).isoformat())
    answers = iter([old, busy, MADE])
    monkeypatch.setattr(ceilings, "measure", lambda described, progress=None: next(answers))
    for expected in (old, busy):
        with pytest.warns(UserWarning, match="fp32, L1 read may be too low"):
            assert ceilings.measured() == expected
        assert stored_ceilings() == expected
    assert ceilings.measured() == busy  # not measured again yet, and not warned of again
    assert ceilings.measured(again=True).in_doubt == ()


def test_the_greater_of_two_figures_is_kept(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower = replace(MADE, compute=tuple(replace(row, flop_per_s=row.flop_per_s / 2) for row in MADE.compute))
    answers = iter([MADE, slower])
    monkeypatch.setattr(ceilings, "measure", lambda described, progress=None: next(answers))
    assert ceilings.measured() == ceilings.measured(again=True) == MADE


def test_two_workers_that_do_no_more_than_one_were_disturbed() -> None:
    one, two = Probe("f", "fp32", "", 1, 0, 1.0), Probe("f", "fp32", "", 2, 0, 1.0)
    read = Probe("r", "DRAM", "read", 2, 0, 1.0)  # which one worker may use up
    assert ceilings.unscaled({one: 10.0, two: 10.5, read: 1.0}) == [two]
    assert ceilings.unscaled({one: 10.0, two: 19.0}) == []


def test_damaged_file_counts_as_not_measured_and_is_replaced(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure", lambda described, progress=None: MADE)
    ceilings.measured()
    (file,) = (cache_dir / "ceilings").iterdir()
    file.write_text('{"version": 1')
    assert stored_ceilings() is None
    assert ceilings.measured() == MADE == stored_ceilings()


def test_folder_that_cannot_be_written_is_a_warning(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_dir.write_text("not a folder")
    monkeypatch.setattr(ceilings, "measure", lambda described, progress=None: MADE)
    with pytest.warns(UserWarning, match="E_CACHE_IO"):
        assert ceilings.measured() == MADE


def test_worker_counts_double_up_to_the_cores() -> None:
    assert [ceilings._worker_counts(cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_bandwidths_and_arithmetic_are_told_apart() -> None:
    probes = {Probe("f", "fp32", "", 1, 0, 1.0): 5.0, Probe("m", "L1", "copy", 2, 64, 1.0): 7.0}
    made = ceilings._ceilings(target.detect(), probes)
    assert made.compute == (ComputeCeiling("fp32", 1, 5.0),)
    assert made.memory == (MemoryCeiling("L1", 2, 7.0, "copy"),)

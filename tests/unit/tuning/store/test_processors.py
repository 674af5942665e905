"""What identities call a CPU: facts of its cores. The same core is called the same in every cloud, busy or quiet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.target import GPUS, CoreFacts, MemoryLevel, Target, arm_cpu, detect
from tessera.tuning.measure.trial import Trial
from tessera.tuning.model.learned import Learned
from tessera.tuning.store import exchange
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.processors import arch_of, kind_of, names_of
from tests.unit.scheduling.problems import AMX, AVX2, ZEN4_CORE
from tests.unit.tuning.support import MATMUL, OPTIMUM, entry, timing

QUIET = replace(ZEN4_CORE, fma_per_cycle=2)
SERVER = replace(
    AVX2,
    arch="znver3",
    name="AMD EPYC 7763 64-Core Processor",
    memory=(
        MemoryLevel("L1", 32 << 10, 64, 1),
        MemoryLevel("L2", 512 << 10, 64, 1),
        MemoryLevel("L3", 32 << 20, 64, 8),
    ),
    core=QUIET,
)
"""A Zen 3, all of a machine."""

HERE = detect()
KIND = kind_of(HERE)
"""This machine, with nothing measured."""


def sized(target: Target, **bytes_of: int) -> Target:
    """A CPU with caches of other sizes."""
    levels = (replace(level, size_bytes=bytes_of.get(level.name, level.size_bytes)) for level in target.memory)
    return replace(target, memory=tuple(levels))


def on(arch: str, kc: int = 256, measured_s: float | None = 1e-3, m: int = 1024) -> Entry:
    """A winner on a processor that is called so."""
    return entry(measured_s, replace(MATMUL, arch=arch, shape=(m, 1024, 1024)), kc)


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "user", shipped=None)


def test_names_are_made_of_facts() -> None:
    zen4 = sized(replace(AMX, core=ZEN4_CORE, features=AMX.features - {"amx-tile", "amx-bf16", "amx-int8"}), L2=1 << 20)
    assert arch_of(SERVER) == "x86-256x16-32k-512k-2fma"
    assert arch_of(zen4) == "x86-512x32-bf16-vnni-32k-1m-1fma"
    rapids = sized(AMX.with_core(QUIET), L1=48 << 10, L2=2 << 20)
    assert arch_of(rapids) == "x86-512x32-bf16-vnni-amxbf16-amxint8-48k-2m-2fma"
    assert arch_of(arm_cpu("neoverse-n1")) == "arm-128x32-64k-1m"
    hopper = GPUS["H100-SXM5-80GB"]
    assert arch_of(hopper) == "sm_90 H100-SXM5-80GB"


@pytest.mark.parametrize(
    "elsewhere",
    [
        replace(SERVER, arch="znver4", name="AMD EPYC"),
        replace(SERVER, arch="x86-64-v3", name="Virtual CPU"),
        replace(SERVER, cores=2, processors=4),
        replace(SERVER, features=SERVER.features | {"vaes", "sha"}),
        sized(SERVER, L3=16 << 20),
        replace(SERVER, memory=SERVER.memory[:2]),
        sized(SERVER, L2=520 << 10),
    ],
    ids=["other LLVM", "other maker", "fewer cores", "more features", "less L3", "no L3 told", "nearly the same L2"],
)
def test_the_same_core_elsewhere_is_called_the_same(elsewhere: Target) -> None:
    assert arch_of(elsewhere) == arch_of(SERVER)


@pytest.mark.parametrize(
    "other",
    [
        sized(SERVER, L1=48 << 10),
        sized(SERVER, L2=1 << 20),
        replace(SERVER, vector_bits=512, vector_registers=32),
        replace(SERVER, features=SERVER.features | {"avxvnni"}),
        SERVER.with_core(replace(QUIET, fma_per_cycle=1)),
    ],
    ids=["L1", "L2", "registers", "instructions", "multiply-adds"],
)
def test_cores_of_other_facts_are_told_apart(other: Target) -> None:
    assert arch_of(other) != arch_of(SERVER)
    assert arch_of(SERVER) not in names_of(arch_of(other))


@pytest.mark.parametrize(
    "busy",
    [
        replace(QUIET, in_doubt=True),
        replace(QUIET, cycle_s=9e-10, wake_s=0.04, date="2026-01-01"),
        replace(QUIET, loads_per_cycle=1, tlb_pages=0, streams=0, fma_latency=7),
        replace(QUIET, caches=(("L2", 64 << 10), ("L3", 1 << 20)), in_doubt=True),
        replace(QUIET, dots=(("bf16", 0.4),)),
    ],
    ids=["doubt", "slow clock", "neighbours", "caches lent", "slow pairs"],
)
def test_a_busy_machine_is_called_as_it_is_when_it_is_quiet(busy: CoreFacts) -> None:
    assert arch_of(replace(SERVER, core=busy)) == arch_of(SERVER)


def test_what_others_made_look_less_is_left_out_and_hides_nothing(database: TuningDatabase) -> None:
    doubted = SERVER.with_core(replace(QUIET, fma_per_cycle=1, in_doubt=True))
    assert arch_of(doubted) == kind_of(SERVER) == arch_of(SERVER.with_core(None))
    database.put(on(arch_of(SERVER)))
    found = database.lookup(on(arch_of(doubted)).identity)
    assert found is not None
    assert found.entry == on(arch_of(doubted))


@pytest.mark.parametrize(("count", "name"), [(1, 1), (2, 2), (3, 4), (4, 4), (6, 4)])
def test_multiply_adds_are_counted_coarsely(count: int, name: int) -> None:
    assert arch_of(SERVER.with_core(replace(QUIET, fma_per_cycle=count))).endswith(f"-{name}fma")


def test_with_and_without_measured_cores_winners_are_found(database: TuningDatabase) -> None:
    measured, plain = arch_of(SERVER), kind_of(SERVER)
    database.put(on(plain, kc=64))
    assert [found.entry for found in [database.lookup(on(measured).identity)] if found] == [on(measured, kc=64)]
    database.put(on(measured, kc=512))
    for asked, kc in ((measured, 512), (plain, 64)):
        found = database.lookup(on(asked).identity)
        assert found is not None
        assert (found.entry.schedule["kc"], found.entry.identity.arch) == (kc, asked)
    other = database.lookup(on(f"{plain}-1fma").identity)  # what was kept without a count is for all of them
    assert other is not None
    assert other.entry.schedule["kc"] == 64


def test_cores_of_another_count_find_nothing_of_each_other(database: TuningDatabase) -> None:
    database.put(on(f"{kind_of(SERVER)}-1fma"))
    assert database.lookup(on(arch_of(SERVER)).identity) is None


def test_what_earlier_versions_kept_by_name_is_found(database: TuningDatabase) -> None:
    old, new = HERE.arch, f"{KIND}-2fma"
    database.put(on(old))
    database.put(on(old, kc=64, measured_s=None, m=512))
    database.put(on(old, m=2048))
    database.log(on(old).identity, [Trial(OPTIMUM, "ok", timing(1e-3))], {})
    for asked in (new, KIND):
        found = database.lookup(on(asked).identity)
        assert found is not None
        assert (found.entry, found.layer) == (on(asked), "user")
        guess = database.lookup(on(asked, m=512).identity)
        assert guess is not None
        assert guess.entry.origin == "model"
        near = database.neighbours(on(asked, m=1500).identity, 3)
        assert [each.entry for each in near] == [on(asked, m=2048), on(asked, m=1024)]
        assert database.shapes(on(asked).identity) == [(m, 1024, 1024) for m in (512, 1024, 2048)]
        assert len(database.trials(on(asked).identity)) == 1
    database.put(on(new, kc=512))
    found = database.lookup(on(new).identity)
    assert found is not None
    assert found.entry.schedule["kc"] == 512
    assert {each.identity.arch for each in database.entries()} == {old, new}


def test_names_of_other_cpus_and_of_gpus_stand_for_themselves() -> None:
    foreign = "x86-512x32-vnni-amxint8-24k-3m-1fma"
    assert names_of(foreign) == (foreign, foreign.removesuffix("-1fma"))
    assert all(names_of(name) == (name,) for name in ("znver4", "sm_90 H100-SXM5-80GB", "arm", "x86-256x16-2fma"))


def test_a_users_old_winner_goes_before_a_shipped_new_one(tmp_path: Path) -> None:
    TuningDatabase(tmp_path / "user", shipped=None).put(on(HERE.arch, kc=64))
    TuningDatabase(tmp_path / "shipped", shipped=None).put(on(KIND))
    found = TuningDatabase(tmp_path / "user", (), tmp_path / "shipped").lookup(on(KIND).identity)
    assert found is not None
    assert (found.layer, found.entry.schedule["kc"]) == ("user", 64)


def test_imported_winners_are_taken_under_todays_name(database: TuningDatabase, tmp_path: Path) -> None:
    here = f"{KIND}-2fma"
    database.put(on(here, measured_s=2e-3))
    file = tmp_path / "all.json"
    exchange.export([on(HERE.arch, kc=64), on(f"{KIND}-1fma", m=8), on("z80", m=8)], file)
    done = exchange.merge(database, file, (here,))
    assert (done.applied, done.declined, len(done.refused)) == (1, 0, 2)
    assert list(database.entries()) == [on(here, kc=64)]


def test_what_was_learned_is_found_under_all_names() -> None:
    record = json.loads((Path(exchange.__file__).parents[1] / "model" / "residuals.json").read_text())
    shipped = Learned.from_json(record, "shipped")
    archs = {arch for arch, _ in shipped.residuals}
    assert archs == {"x86-512x32-bf16-vnni-32k-1m-1fma"}

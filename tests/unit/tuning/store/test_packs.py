from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.tuning.store import packs
from tessera.tuning.store.database import CacheWarning, TuningDatabase
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.packs import read_pack, write_packs
from tests.unit.tuning.support import MATMUL, PROVENANCE, entry, shaped

SHAPES = [shaped(m, 8, 8) for m in (1, 64, 1000)]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A layer that holds three measured winners and a guess in one pack."""
    write_packs([*(entry(identity=identity) for identity in SHAPES), entry(None, shaped(5, 5, 5))], tmp_path / "site")
    return tmp_path / "site"


def of(user: Path, site: Path) -> TuningDatabase:
    return TuningDatabase(user, (site,), shipped=None)


def test_a_family_is_one_file(packed: Path) -> None:
    assert [path.name for path in packed.rglob("*") if path.is_file()] == [packs.NAME]


def test_packed_winners_are_found(tmp_path: Path, packed: Path) -> None:
    database = of(tmp_path / "user", packed)
    found = database.lookup(SHAPES[1])
    assert found is not None
    assert (found.entry, found.layer) == (entry(identity=SHAPES[1]), "site")
    near = database.nearest(shaped(70, 8, 8))
    assert near is not None
    assert near.entry.identity == SHAPES[1]
    guess = database.lookup(shaped(5, 5, 5))
    assert guess is not None
    assert guess.entry.origin == "model"
    assert database.lookup(shaped(2, 8, 8)) is None
    assert database.counts() == {"memory": 0, "user": 0, "site": 4}
    assert len(list(database.entries())) == 4


def test_a_file_of_its_own_goes_before_the_pack(tmp_path: Path, packed: Path) -> None:
    TuningDatabase(packed, shipped=None).put(entry(identity=SHAPES[1], kc=512))
    database = of(tmp_path / "user", packed)
    found = database.lookup(SHAPES[1])
    assert found is not None
    assert found.entry.schedule["kc"] == 512
    assert [each.schedule["kc"] for each in database.entries() if each.identity == SHAPES[1]] == [512]


def test_a_pack_that_is_replaced_is_read_again(tmp_path: Path, packed: Path) -> None:
    database = of(tmp_path / "user", packed)
    assert database.lookup(SHAPES[0]) is not None
    write_packs([entry(identity=SHAPES[2])], packed)
    assert database.lookup(SHAPES[0]) is None
    assert database.lookup(SHAPES[2]) is not None


def test_of_two_entries_the_better_one_is_packed(tmp_path: Path) -> None:
    write_packs([entry(2e-3, kc=64), entry(1e-3, kc=128), entry(3e-3, kc=512)], tmp_path)
    (found,) = TuningDatabase(tmp_path, shipped=None).entries()
    assert found.schedule["kc"] == 128


times = st.floats(1e-9, 1e3)
winners = st.builds(
    lambda shape, measured, predicted, kc, torch: Entry(
        shaped(*shape),
        entry(kc=kc).schedule,
        "measured",
        replace(PROVENANCE, torch=torch),
        predicted,
        measured,
        3,
    ),
    st.lists(st.integers(0, 1 << 40), max_size=5),
    times,
    st.none() | times,
    st.sampled_from([64, 128, 256]),
    st.sampled_from(["2.13.0", "2.14.0"]),
)


@given(st.lists(winners, max_size=6, unique_by=lambda item: item.identity))
def test_packing_keeps_entries_as_they_are(tmp_path_factory: pytest.TempPathFactory, made: list[Entry]) -> None:
    folder = tmp_path_factory.mktemp("packs")
    write_packs(made, folder)
    found = TuningDatabase(folder, shipped=None).entries()
    assert {each.identity: each for each in found} == {each.identity: each for each in made}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"tessera-autotune-pack"', '"something"'),
        ('"version": 1', '"version": 8'),
        ('"zen5"', '"zen6"'),
        ('"provenance": [', '"provenance": 7, "x": ['),
        ('"shape": [64, 8, 8]', '"shape": "64x8x8"'),
        ('"entries": [', '"entries": {}, "y": ['),
    ],
)
def test_a_damaged_pack_is_said_and_passed_over(tmp_path: Path, packed: Path, old: str, new: str) -> None:
    (path,) = packed.rglob(packs.NAME)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.warns(CacheWarning, match="E_CACHE_FORMAT"):
        assert of(tmp_path / "user", packed).lookup(SHAPES[1]) is None


@pytest.mark.parametrize("field", ["schedule", "measured_s", "provenance", "trials"])
def test_a_damaged_winner_costs_only_itself(tmp_path: Path, packed: Path, field: str) -> None:
    (path,) = packed.rglob(packs.NAME)
    content = json.loads(path.read_text())
    next(record for record in content["entries"] if record["shape"] == [64, 8, 8])[field] = -99
    path.write_text(json.dumps(content))
    database = of(tmp_path / "user", packed)
    with pytest.warns(CacheWarning, match="64x8x8 is damaged"):
        assert database.lookup(SHAPES[1]) is None
    assert database.lookup(SHAPES[0]) is not None


def test_a_pack_tells_its_family(packed: Path) -> None:
    (path,) = packed.rglob(packs.NAME)
    pack = read_pack(str(path), MATMUL.family())
    assert pack.family == shaped()
    assert pack.get((64, 8, 8), "measured") == entry(identity=SHAPES[1])
    assert pack.get((64, 8, 8), "model") is None

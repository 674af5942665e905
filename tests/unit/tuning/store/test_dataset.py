from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import polars
import pytest

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.trial import Trial
from tessera.tuning.store.database import CacheWarning, TuningDatabase
from tessera.tuning.store.dataset import dataset
from tests.unit.tuning.support import MATMUL, OPTIMUM, PROVENANCE, shaped, timing

OK = Trial(OPTIMUM, "ok", timing(1e-3), predicted_s=2e-3)
CRASH = Trial(OPTIMUM.replace(kc=64), "crashed", detail="killed by SIGSEGV\nat once")
CONTEXT = {"provenance": PROVENANCE.to_json()}


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "user", (tmp_path / "site",), None)


def test_no_trials_are_an_empty_table_of_the_same_columns(database: TuningDatabase) -> None:
    empty = dataset(database)
    database.log(MATMUL, [OK], CONTEXT)
    assert len(empty) == 0
    assert empty.columns == dataset(database).columns


def test_every_trial_is_a_row(database: TuningDatabase, tmp_path: Path) -> None:
    database.log(MATMUL, [OK, CRASH], CONTEXT)
    database.log(shaped(1, 2), [OK], CONTEXT)
    TuningDatabase(tmp_path / "site", shipped=None).log(replace(MATMUL, operator="softmax"), [OK], CONTEXT)
    table = dataset(database)
    assert len(table) == 4
    first, second = table.filter(polars.col("shape").list.len() == 3, layer="user").rows(named=True)
    assert (first["operator"], first["shape"], first["dtypes"]) == ("matmul", [1024, 1024, 1024], ["fp32", "fp32"])
    assert (first["arch"], first["threads"], first["layer"]) == ("zen5", 2, "user")
    assert (first["outcome"], first["median_s"], first["predicted_s"], first["kept"]) == ("ok", 1e-3, 2e-3, 5)
    assert Schedule.parse(first["schedule"]) == OPTIMUM
    assert first["knobs"] == {"tile": [12, 32], "kc": 256, "prefetch": True}
    assert first["provenance"] == PROVENANCE.to_json()
    assert (second["outcome"], second["median_s"], second["detail"]) == ("crashed", None, "killed by SIGSEGV\nat once")
    assert table["operator"].to_list().count("softmax") == 1


def test_knobs_of_several_kernels_share_one_struct(database: TuningDatabase) -> None:
    database.log(MATMUL, [OK], CONTEXT)
    other = Trial(Schedule(kc="all", lanes=8), "compile_error")
    database.log(replace(MATMUL, operator="softmax"), [other], CONTEXT)
    knobs = dataset(database).sort("operator")["knobs"].to_list()
    assert knobs[0] == {"tile": [12, 32], "kc": "256", "prefetch": True, "lanes": None}
    assert knobs[1] == {"tile": None, "kc": "all", "prefetch": None, "lanes": 8}


def test_metrics_become_a_struct(database: TuningDatabase) -> None:
    measured = {"bandwidth": 0.5, "occupancy": None, "missing": {"occupancy": "no counters"}, "count": 1 << 70}
    database.log(MATMUL, [OK], {**CONTEXT, "metrics": measured})
    database.log(MATMUL, [OK], CONTEXT)
    first, second = dataset(database)["metrics"].to_list()
    assert (first["bandwidth"], first["occupancy"]) == (0.5, None)
    assert (first["missing"], first["count"]) == ("occupancy: no counters", str(1 << 70))
    assert second["bandwidth"] is None


def test_lines_that_are_no_trials_are_counted_and_left_out(database: TuningDatabase) -> None:
    database.log(MATMUL, [OK], CONTEXT)
    (log,) = database.user.logs(MATMUL)
    record = json.loads(log.read_text())
    spoiled = [
        {name: value for name, value in record.items() if name != "identity"},
        {**record, "median_s": "soon"},
        {**record, "schedule": {"tile": 0.5}},
        {**record, "outcome": "\x1b[2J"},
        {**record, "metrics": 5},
    ]
    surrogate = {**record, "detail": "\ud800"}
    log.write_text("".join(json.dumps(each) + "\n" for each in [record, *spoiled, surrogate]))
    with pytest.warns(CacheWarning, match="5 lines"):
        table = dataset(database)
    assert table["detail"].to_list() == [None, "?"]


def test_hosts_are_told_apart(database: TuningDatabase) -> None:
    database.log(MATMUL, [OK], CONTEXT)
    (log,) = database.user.logs(MATMUL)
    log.with_name(f"{MATMUL.shape_name()}.other-host.jsonl").write_bytes(log.read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hosts = dataset(database)["host"]
    assert len(hosts) == 2
    assert "other-host" in hosts.to_list()

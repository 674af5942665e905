from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.scheduling.language.schedule import Schedule
from tessera.system import files
from tessera.tuning.measure.trial import Trial
from tessera.tuning.store import layer, shape_family
from tessera.tuning.store.database import SHIPPED, TuningDatabase
from tessera.tuning.store.entry import VERSION, dump
from tessera.tuning.store.identity import Identity
from tessera.tuning.store.layer import Layer
from tests import forked
from tests.unit.tuning.support import MATMUL, OPTIMUM, entry, shaped, timing


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "user", shipped=None)


def again(database: TuningDatabase) -> TuningDatabase:
    """The same folder as another process would see it."""
    return TuningDatabase(database.user.root, shipped=None)


def test_winner_is_found_by_another_process(database: TuningDatabase) -> None:
    assert database.lookup(MATMUL) is None
    assert database.put(entry())
    found = again(database).lookup(MATMUL)
    assert found is not None
    assert (found.entry, found.layer) == (entry(), "user")


def test_entry_file_is_one_readable_json_object(database: TuningDatabase) -> None:
    database.put(entry())
    record = json.loads(database.user.path(MATMUL, "measured").read_text())
    assert record["best"] == "tile=(12,32), kc=256, prefetch=True"
    assert record["version"] == VERSION
    assert record["provenance"]["torch"] == "2.13.0"


def test_later_winner_replaces_the_earlier(database: TuningDatabase) -> None:
    other = again(database)
    database.put(entry(kc=128))
    assert other.lookup(MATMUL) is not None
    database.put(entry(kc=512))
    for view in (database, other, again(database)):
        found = view.lookup(MATMUL)
        assert found is not None
        assert found.entry.schedule["kc"] == 512


def test_a_guess_never_hides_a_measurement(database: TuningDatabase) -> None:
    database.put(entry(kc=128))
    database.put(entry(None, kc=512))
    found = again(database).lookup(MATMUL)
    assert found is not None
    assert found.entry.origin == "measured"


def test_layers_go_user_site_shipped_but_measured_first(tmp_path: Path) -> None:
    for name, kc in (("shipped", 128), ("site", 256), ("user", 512)):
        TuningDatabase(tmp_path / name, shipped=None).put(entry(kc=kc))
        database = TuningDatabase(tmp_path / "user", (tmp_path / "site",), tmp_path / "shipped")
        found = database.lookup(MATMUL)
        assert found is not None
        assert (found.layer, found.entry.schedule["kc"]) == (name, kc)
    guess = entry(None, shaped(1, 1, 1))
    TuningDatabase(tmp_path / "user", shipped=None).put(guess)
    TuningDatabase(tmp_path / "site", shipped=None).put(entry(identity=shaped(1, 1, 1)))
    found = database.lookup(shaped(1, 1, 1))
    assert found is not None
    assert found.layer == "site"


def test_mismatch_in_any_field_is_a_miss_that_names_it(database: TuningDatabase) -> None:
    database.put(entry())
    asked = replace(MATMUL, threads=1, math="tf32")
    assert database.lookup(asked) is None
    miss = database.explain_miss(asked)
    assert miss.differences == {"math": ("tf32", "ieee"), "threads": (1, 2)}
    assert "threads is 2, not 1" in str(miss)


def test_miss_prefers_the_same_operator(database: TuningDatabase) -> None:
    database.put(entry(identity=replace(MATMUL, operator="softmax")))
    database.put(entry(identity=replace(MATMUL, arch="zen4", threads=8)))
    assert set(database.explain_miss(MATMUL).differences) == {"arch", "threads"}


def test_miss_in_an_empty_cache_says_so(database: TuningDatabase) -> None:
    assert "empty" in str(database.explain_miss(MATMUL))


def test_nearest_is_by_log_distance_within_the_family(database: TuningDatabase) -> None:
    for m, kc in ((128, 64), (768, 128), (4096, 512)):
        database.put(entry(identity=shaped(m, 1024, 1024), kc=kc))
    database.put(entry(identity=replace(MATMUL, threads=1)))
    nearest = again(database).nearest(MATMUL)
    assert nearest is not None
    assert nearest.entry.schedule["kc"] == 128
    assert nearest.distance == pytest.approx(0.415, abs=0.001)
    assert database.nearest(shaped(1, 1024, 1024)) is None
    assert database.nearest(shaped(1024, 1024)) is None


def test_merge_keeps_the_faster_measured_one(database: TuningDatabase) -> None:
    database.put(entry(2e-3, kc=128))
    faster, slower, guess = entry(1e-3, kc=256), entry(3e-3, kc=512), entry(None, kc=64)
    assert database.merge([slower, guess]) == ([], [slower, guess])
    assert database.merge([faster]) == ([faster], [])
    found = database.lookup(MATMUL)
    assert found is not None
    assert found.entry == faster


def test_trials_are_logged_and_read_back(database: TuningDatabase) -> None:
    ok = Trial(OPTIMUM, "ok", timing(1e-3), predicted_s=2e-3)
    crash = Trial(OPTIMUM.replace(kc=64), "crashed", detail="killed by SIGSEGV")
    assert database.log(MATMUL, [ok], {"run": 1})
    assert database.log(MATMUL, [crash], {"run": 2})
    database.log(shaped(1024, 1024, 10240), [ok], {})
    first, second = database.trials(MATMUL)
    assert Schedule.from_json(first["schedule"]) == OPTIMUM
    assert first["median_s"] == 1e-3
    assert (second["outcome"], second["detail"], second["run"]) == ("crashed", "killed by SIGSEGV", 2)


def test_a_line_cut_short_costs_only_itself(database: TuningDatabase) -> None:
    trial = Trial(OPTIMUM, "ok", timing(1e-3))
    database.log(MATMUL, [trial], {"run": 1})
    (log,) = database.user.root.glob("v1/*/*.jsonl")
    with log.open("a") as stream:
        stream.write('{"schedule": {"ti\n')
    database.log(MATMUL, [trial], {"run": 2})
    assert [record["run"] for record in database.trials(MATMUL)] == [1, 2]


_WRITERS = """
import os
import sys
from pathlib import Path
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.measure.trial import Trial
from tests.unit.tuning.support import MATMUL, OPTIMUM, entry, shaped, timing

def write(writer):
    database = TuningDatabase(Path(sys.argv[1]), shipped=None)
    for turn in range(40):
        assert database.put(entry(1e-3 + writer * 1e-6, kc=(64, 128)[writer]))
        assert database.put(entry(identity=shaped(writer + 1, turn + 1, 64)))
        assert database.log(MATMUL, [Trial(OPTIMUM, "ok", timing(1e-3), detail="x" * 300)] * 3, {"writer": writer})
        found = database.lookup(MATMUL)
        assert found is not None and found.layer == "user"
        assert not database.problems

child = os.fork()
write(0 if child else 1)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_two_processes_write_at_once_and_lose_nothing(database: TuningDatabase) -> None:
    root = Path(__file__).parents[4]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    done = forked.run(_WRITERS, [str(database.user.root)], environment, warm=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = database.lookup(MATMUL)
    assert found is not None
    assert found.entry in (entry(1e-3, kc=64), entry(1e-3 + 1e-6, kc=128))
    assert len(list(database.entries())) == 1 + 2 * 40
    logged = [record["writer"] for record in database.trials(MATMUL)]
    assert (logged.count(0), logged.count(1)) == (120, 120)
    assert not list(database.user.root.rglob("*.tmp"))


def origins(view: Layer, identity: Identity) -> set[str]:
    found = view.family(identity.family())
    return set() if found is None else set(found.get(identity))


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on, in order."""
    read: list[str] = []
    original = files.read_regular

    def reading(path: str, limit: int) -> bytes:
        data = original(path, limit)
        read.append(Path(path).name)
        return data

    monkeypatch.setattr(shape_family, "read_regular", reading)
    return read


def test_a_look_up_reads_the_file_it_needs_and_once(database: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    for m in range(1, 6):
        database.put(entry(identity=shaped(m, 1, 1)))
    view = Layer("user", database.user.root, lambda problem: pytest.fail(str(problem)))
    read = opened(monkeypatch)
    for _ in range(3):
        assert origins(view, shaped(1, 1, 1)) == {"measured"}
        assert origins(view, shaped(9, 1, 1)) == set()
    assert read == ["1x1x1.json"]


def test_the_nearest_shape_is_found_by_names_alone(database: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    for m in range(1, 50):
        database.put(entry(identity=shaped(m, 1, 1)))
    read = opened(monkeypatch)
    found = again(database).nearest(shaped(60, 1, 1))
    assert found is not None
    assert found.entry.identity == shaped(49, 1, 1)
    assert read == ["49x1x1.json"]


def test_neighbours_are_the_nearest_shapes_of_all_layers(tmp_path: Path) -> None:
    for name, rows in (("user", (64, 100)), ("site", (64, 128, 512))):
        for m in rows:
            TuningDatabase(tmp_path / name, shipped=None).put(entry(identity=shaped(m, 8, 8)))
    database = TuningDatabase(tmp_path / "user", (tmp_path / "site",), None)
    near = database.neighbours(shaped(120, 8, 8), count=3)
    assert [(found.entry.identity.shape[0], found.layer) for found in near] == [
        (128, "site"),
        (100, "user"),
        (64, "user"),
    ]
    assert database.neighbours(shaped(120, 8, 8), count=3, within=0.1) == near[:1]


def test_shapes_of_names_too_long_to_say_them_are_found(database: TuningDatabase) -> None:
    long = shaped(*range(1000, 1030))
    database.put(entry(identity=long))
    database.put(entry(identity=shaped(*range(1000, 1029), 7)))
    other = again(database)
    found = other.lookup(long)
    assert found is not None
    near = other.nearest(shaped(*range(1000, 1029), 1030))
    assert near is not None
    assert near.entry == found.entry


def test_a_folder_that_changed_within_one_time_stamp_is_noticed_later(
    database: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "stamp_of", lambda status: (0,))  # a clock that stands still
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    database.put(entry(kc=64))
    other = again(database)
    assert other.lookup(MATMUL) is not None
    database.put(entry(kc=512))
    now[0] = layer.RECHECK_S + 0.1
    found = other.lookup(MATMUL)
    assert found is not None
    assert found.entry.schedule["kc"] == 512


def test_counting_reads_nothing(database: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not database.has_entries()
    database.put(entry())
    database.put(entry(None, identity=shaped(1, 1, 1)))
    other = again(database)
    read = opened(monkeypatch)
    assert other.has_entries()
    assert other.counts() == {"memory": 0, "user": 2}
    assert read == []


def test_a_settled_layer_is_read_once(database: TuningDatabase) -> None:
    database.put(entry())
    settled, open_to_change = (Layer("any", database.user.root, lambda problem: None, fixed) for fixed in (True, False))
    absent = replace(MATMUL, threads=7)
    for view in (settled, open_to_change):
        assert origins(view, MATMUL) == {"measured"}
        assert origins(view, absent) == set()
    database.put(entry(None))
    database.put(entry(identity=absent))
    assert (origins(settled, MATMUL), origins(settled, absent)) == ({"measured"}, set())
    assert (origins(open_to_change, MATMUL), origins(open_to_change, absent)) == ({"measured", "model"}, {"measured"})


def test_a_look_up_on_the_path_of_binding_asks_the_system_once(
    database: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.put(entry())
    for identity in (MATMUL, shaped(1, 1, 1)):
        database.lookup(identity)
    asked: list[str] = []
    original = os.lstat

    def asking(path: str) -> os.stat_result:
        asked.append(path)
        return original(path)

    monkeypatch.setattr(os, "lstat", asking)
    assert database.lookup(MATMUL) is not None
    assert len(asked) == 1
    assert database.lookup(shaped(1, 1, 1)) is None
    assert len(asked) == 2


def test_shipped_folder_holds_only_readable_entries() -> None:
    problems: list[Exception] = []
    entries = list(Layer("shipped", SHIPPED, problems.append).entries())
    assert not problems
    assert len(entries) == Layer("shipped", SHIPPED, problems.append).count()


def test_dump_is_stable() -> None:
    assert dump(entry().to_json()) == dump(entry().to_json())


def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have(database: TuningDatabase) -> None:
    database.put(entry())
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with database._lock:
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        signal.alarm(120)
        os._exit(0 if database.lookup(MATMUL) is not None else 1)
    release.set()
    holder.join(60)
    assert os.waitpid(child, 0)[1] == 0

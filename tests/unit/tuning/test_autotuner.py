from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tessera import settings
from tessera.errors import (
    ArgumentError,
    CacheFormatError,
    CacheIOError,
    CompileError,
    ShapeMismatchError,
    TuneFailedError,
)
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.autotuner import Autotune
from tessera.tuning.interfaces import Progress, TuningProblem
from tessera.tuning.measure.measurement import ReplayMeasurer
from tessera.tuning.measure.trial import Outcome, Timing
from tessera.tuning.measure.workload import Case
from tessera.tuning.online.ticket import TuningWarning
from tessera.tuning.store.entry import Entry
from tests.unit.tuning.support import (
    MATMUL,
    OPTIMUM,
    SPACE,
    entry,
    misled_seconds,
    problem,
    shaped,
    synthetic_seconds,
    synthetic_table,
)


@dataclass
class Backend:
    """A `TuningBackend` whose problems are the synthetic ones of `support`."""

    arch: str = "zen5"
    generator: str = "gen1"
    predict: Callable[[Schedule], float] = synthetic_seconds
    asked: list[tuple[object, object, object]] = field(default_factory=list)

    @property
    def archs(self) -> tuple[str, ...]:
        return ("another", self.arch)

    def subject(self, op: object, shapes: object, dtype: object, device: object = None) -> TuningProblem:
        self.asked.append((op, shapes, dtype))
        if not isinstance(shapes, tuple):
            raise ShapeMismatchError(f"{op} takes (M, N, K), not {shapes}")
        identity = replace(MATMUL, operator=str(op), shape=shapes, arch=self.arch)
        return replace(problem(identity, self.predict), generator=self.generator)

    def objection(self, entry: Entry) -> str | None:
        broken = SPACE.objections(entry.schedule)
        return f"illegal: {', '.join(broken)}" if broken else None


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with settings.override(cache_dir=tmp_path / "cache", tune_site_dir=None, autotune=False):
        yield tmp_path / "cache"


def tuner(backend: Backend | None = None, table: dict[Schedule, Timing | Outcome] | None = None) -> Autotune:
    made = backend or Backend()
    return Autotune(lambda: made, ReplayMeasurer(synthetic_table() if table is None else table))


SHAPE = (1024, 1024, 1024)


def test_model_method_measures_nothing() -> None:
    measurer = ReplayMeasurer({})
    config = Autotune(Backend, measurer)("matmul", shapes=SHAPE)
    assert config.schedule == OPTIMUM
    assert (config.source, config.predicted_s, config.measured_s) == ("model", synthetic_seconds(OPTIMUM), None)
    assert not measurer.asked
    assert str(config) == "Best config: tile=(12,32), kc=256, prefetch=True"
    other = replace(config, schedule=Schedule(kc=8, fusion=True, pipeline_depth=3, tile=(1, 2)))
    assert str(other) == "Best config: tile=(1,2), pipeline_depth=3, fusion=True, kc=8"


def test_what_was_never_tuned_says_that_it_is_the_models_choice() -> None:
    autotune = Autotune(Backend, ReplayMeasurer({}))
    assert str(autotune.load("matmul", SHAPE)).endswith("(never tuned: the cost model's choice)")


def test_on_device_finds_what_the_model_does_not() -> None:
    autotune = tuner(Backend(predict=misled_seconds))
    assert autotune("matmul", SHAPE).schedule != OPTIMUM
    config = autotune("matmul", SHAPE, method="on_device")
    assert config.schedule == OPTIMUM
    assert (config.source, config.measured_s) == ("measured", 1e-3)
    assert config.trials[0].schedule == SPACE.default


def test_arguments_reach_the_backend_and_its_errors_the_user() -> None:
    backend = Backend()
    autotune = tuner(backend)
    autotune("matmul", SHAPE, dtype="bf16")
    assert backend.asked == [("matmul", SHAPE, "bf16")]
    with pytest.raises(ShapeMismatchError):
        autotune("matmul", [(3, 4)])
    with pytest.raises(ArgumentError, match="guess"):
        autotune("matmul", SHAPE, method="guess")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        autotune("matmul", SHAPE, method="on_device", max_trials=0)


def test_second_run_uses_the_cache_and_says_so() -> None:
    tuner()("matmul", SHAPE, method="on_device")
    measurer = ReplayMeasurer({})
    again = Autotune(Backend, measurer)
    for config in (again("matmul", SHAPE, method="on_device"), again("matmul", SHAPE), again.load("matmul", SHAPE)):
        assert (config.source, config.schedule) == ("cache", OPTIMUM)
        assert "user cache" in config.note
    assert not measurer.asked
    assert tuner()("matmul", SHAPE, method="on_device", force=True).source == "measured"


def test_stale_winner_is_used_but_measured_again_on_request() -> None:
    tuner()("matmul", SHAPE, method="on_device")
    newer = tuner(Backend(generator="gen2"))
    assert newer.load("matmul", SHAPE).stale == ("generator",)
    assert newer("matmul", SHAPE).stale == ("generator",)
    assert newer("matmul", SHAPE, method="on_device").source == "measured"
    assert newer.load("matmul", SHAPE).stale == ()


def test_load_names_what_it_falls_back_to() -> None:
    autotune = tuner()
    config = autotune.load("matmul", SHAPE)
    assert (config.source, config.schedule) == ("default", SPACE.default)
    assert "empty" in config.note
    autotune("matmul", (1024, 1024, 2048), method="on_device")
    config = autotune.load("matmul", SHAPE)
    assert (config.source, config.schedule) == ("nearest", OPTIMUM)
    assert config.identity == MATMUL
    assert "shape is (1024, 1024, 2048), not (1024, 1024, 1024)" in config.note


def test_winner_that_is_no_longer_legal_is_not_used() -> None:
    autotune = tuner()
    autotune.database.put(replace(entry(), schedule=OPTIMUM.replace(kc=1024)))
    assert autotune.load("matmul", SHAPE).source == "default"
    autotune.database.put(replace(entry(), schedule=Schedule(tile=(12, 32))))
    assert autotune.load("matmul", SHAPE).source == "default"


def test_first_call_tunes_only_when_enabled_and_once() -> None:
    measurer = ReplayMeasurer(synthetic_table())
    autotune = Autotune(Backend, measurer)
    assert autotune.schedule_for(problem()).source == "default"
    assert not measurer.asked
    autotune.enable(True, share="first_call")
    assert autotune.enabled
    assert autotune.schedule_for(problem()).source == "measured"
    count = len(measurer.asked)
    assert autotune.schedule_for(problem()).source == "cache"
    assert len(measurer.asked) == count
    autotune.enable(False)
    assert autotune.schedule_for(problem(shaped(1, 1, 1))).source == "default"


def test_setting_turns_first_call_tuning_on() -> None:
    with settings.override(autotune=True):
        assert tuner().enabled
    assert not tuner().enabled


def test_threads_that_ask_at_once_tune_once() -> None:
    measurer = ReplayMeasurer(synthetic_table())
    autotune = Autotune(Backend, measurer)
    autotune.enable(share="first_call")
    sources: list[str] = []
    threads = [
        threading.Thread(target=lambda: sources.append(autotune.schedule_for(problem()).source)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sources) == ["cache"] * 3 + ["measured"]


def test_first_call_that_cannot_be_tuned_warns_and_runs_with_the_default() -> None:
    autotune = tuner(table=dict.fromkeys(SPACE.candidates(), "crashed"))
    autotune.enable(share="first_call")
    with pytest.warns(TuningWarning, match="ended as crashed"):
        config = autotune.schedule_for(problem())
    assert config.schedule == SPACE.default
    with pytest.raises(TuneFailedError):
        autotune("matmul", SHAPE, method="on_device")


def test_candidates_that_do_not_compile_are_trials() -> None:
    def build(schedule: Schedule) -> Case:
        if schedule["prefetch"]:
            raise CompileError("too many registers")
        return problem().build(schedule)

    autotune = tuner()
    autotune.enable(share="first_call")
    config = autotune.schedule_for(replace(problem(), build=build))
    assert config.schedule == OPTIMUM.replace(prefetch=False)
    failed = [trial for trial in config.trials if trial.outcome == "compile_error"]
    assert failed
    assert all("too many registers" in trial.detail for trial in failed)


def test_every_trial_is_logged() -> None:
    autotune = tuner()
    config = autotune("matmul", SHAPE, method="on_device")
    logged = autotune.database.trials(MATMUL)
    assert {str(Schedule.from_json(record["schedule"])) for record in logged} == {
        str(trial.schedule) for trial in config.trials
    }
    assert all(record["provenance"]["generator"] == "gen1" for record in logged)
    assert all(record["predicted_s"] > 0 for record in logged)


def test_schedules_that_give_the_same_code_are_measured_once() -> None:
    def build(schedule: Schedule) -> Case:
        return problem().build(schedule.replace(prefetch=True))

    measurer = ReplayMeasurer(synthetic_table())
    autotune = Autotune(Backend, measurer)
    autotune.enable(share="first_call")
    config = autotune.schedule_for(replace(problem(), build=build))
    both = [trial for trial in config.trials if trial.schedule.replace(prefetch=True) == OPTIMUM]
    assert len(both) == 2
    assert both[0].timing == both[1].timing
    assert len(set(measurer.asked)) < len(config.trials)


def test_progress_counts_each_schedule_once() -> None:
    seen: list[Progress] = []
    config = tuner()("matmul", SHAPE, method="on_device", max_trials=20, progress=seen.append)
    made = [step for step in seen if step.trial is not None]
    assert [step.done for step in made] == list(range(1, len(config.trials) + 1))
    # Before a batch, and after each of its trials, it is said what comes next.
    assert seen[0].trial is None
    for before, after in itertools.pairwise(seen):
        assert after.trial is None or after.trial.schedule == before.trying
    assert all(step.limit == 20 for step in seen)
    assert [step.best_s for step in seen] == sorted((step.best_s for step in seen), reverse=True)
    assert seen[-1].best_s == config.measured_s


def test_exported_cache_applies_on_a_machine_of_the_same_kind(tmp_path: Path) -> None:
    autotune = tuner()
    autotune("matmul", SHAPE, method="on_device")
    autotune("softmax", (64, 64))
    assert autotune.save_cache(tmp_path / "zen5.json") == 2
    with settings.override(cache_dir=tmp_path / "elsewhere"):
        other = tuner()
        done = other.load_cache(str(tmp_path / "zen5.json"))
        assert (done.applied, done.declined, done.refused) == (2, 0, {})
        assert other.load("matmul", SHAPE).schedule == OPTIMUM
        assert other.load_cache(tmp_path / "zen5.json").declined == 2


def test_import_refuses_by_reason(tmp_path: Path) -> None:
    autotune = tuner()
    autotune("matmul", SHAPE, method="on_device")
    autotune.save_cache(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    content["entries"] += [{"format": "tessera-autotune", "version": 9}, 5]
    (tmp_path / "a.json").write_text(json.dumps(content))
    with settings.override(cache_dir=tmp_path / "elsewhere"):
        done = tuner(Backend(arch="zen4")).load_cache(tmp_path / "a.json")
    assert done.applied == 0
    assert {reason: len(names) for reason, names in done.refused.items()} == {
        "for zen5, this is another, zen4": 1,
        "of another format than version 1": 1,
        "unreadable": 1,
    }
    assert "format version 9" in str(done)


def test_import_names_the_rules_that_a_schedule_breaks(tmp_path: Path) -> None:
    autotune = tuner()
    autotune.database.put(entry(1e-3, kc=1024))
    autotune.database.put(entry(1e-3, shaped(8, 8, 8), kc=65))
    autotune.database.put(replace(entry(1e-3, shaped(4, 4, 4)), schedule=Schedule(colour="green")))
    autotune.save_cache(tmp_path / "a.json")
    with settings.override(cache_dir=tmp_path / "elsewhere"):
        done = tuner().load_cache(tmp_path / "a.json")
    assert done.applied == 1
    assert set(done.refused) == {
        "illegal: panel_fits",
        "illegal: knob colour, knob kc, knob prefetch, knob tile",
    }


def test_import_keeps_the_better_winner(tmp_path: Path) -> None:
    autotune = tuner()
    autotune.database.put(entry(3e-3, kc=512))
    autotune.save_cache(tmp_path / "slow.json")
    autotune.database.put(entry(1e-3, kc=128))
    assert autotune.load_cache(tmp_path / "slow.json").declined == 1
    assert autotune.load("matmul", SHAPE).schedule["kc"] == 128


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": "tessera-autotune-export", "version": 2}'])
def test_import_of_something_else_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(CacheFormatError):
        tuner().load_cache(tmp_path / "bad.json")
    with pytest.raises(CacheIOError):
        tuner().load_cache(tmp_path / "absent.json")


def test_export_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(CacheIOError, match="blocked"):
        tuner().save_cache(tmp_path / "blocked" / "cache.json")
    assert (tmp_path / "blocked").read_text() == "a file"


def test_status_tells_folder_counts_and_use(cache: Path) -> None:
    autotune = tuner()
    autotune("matmul", SHAPE, method="on_device")
    autotune.load("matmul", SHAPE)
    autotune.load("matmul", (1, 1, 1))
    status = autotune.status()
    assert (status.folder, status.writable, status.enabled) == (cache, True, False)
    assert status.entries["user"] == 1
    assert (status.hits, status.misses, status.tuned) == (1, 1, 1)
    assert str(cache) in str(status)


def test_cache_folder_follows_the_settings(tmp_path: Path) -> None:
    autotune = tuner()
    autotune("matmul", SHAPE, method="on_device")
    with settings.override(cache_dir=tmp_path / "other", tune_site_dir=tmp_path / "cache"):
        config = autotune.load("matmul", SHAPE)
    assert config.source == "cache"
    assert "site cache" in config.note


def unwritable(folders: Sequence[Path]) -> None:
    for folder in folders:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text("in the way")


def test_tuning_works_without_a_cache_folder(cache: Path) -> None:
    unwritable([cache])
    autotune = tuner()
    with pytest.warns(UserWarning, match="E_CACHE_IO"):
        autotune("matmul", SHAPE, method="on_device")
    assert autotune.load("matmul", SHAPE).source == "cache"
    assert any("E_CACHE_IO" in text for text in autotune.status().problems)

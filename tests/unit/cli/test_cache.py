"""`tessera cache`: each subcommand does to the cache what it says, and prints it for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessera import autotune, settings
from tessera.cli.commands import cache as commands
from tessera.cli.main import main
from tessera.compiler.device.compilers import kernel_compiler
from tessera.target import detect
from tessera.tuning.measure.trial import Trial
from tessera.tuning.store.database import CacheWarning
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.exchange import collect, export
from tessera.tuning.store.process_databases import Databases
from tessera.tuning.store.processors import arch_of, kind_of
from tests.unit.tuning.support import MATMUL, OPTIMUM, entry, shaped, timing

ARCHS = commands._archs
"""As it is; the tests put another one in its place."""

pytestmark = pytest.mark.usefixtures("cache_dir")

SOFTMAX = replace(MATMUL, operator="softmax", shape=(64, 64))


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the named caches that other tests have asked for is looked into, and the winners are this machine's."""
    monkeypatch.setattr(autotune, "_databases", Databases())
    monkeypatch.setattr(commands, "_archs", lambda: (MATMUL.arch,))


@pytest.fixture
def filled(cache_dir: Path) -> Path:
    """The cache folder, with two winners and a guess."""
    for made in (entry(), entry(2e-3, SOFTMAX), entry(None, shaped(8, 8, 8))):
        autotune.database.put(made)
    return cache_dir


class Command:
    """Runs `tessera cache ...` in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object, status: int = 0) -> str:
        with pytest.raises(SystemExit) as end:
            main(["cache", *map(str, arguments)])
        captured = self._capture.readouterr()
        assert end.value.code == status, captured.err
        return captured.out if status == 0 or not captured.err else captured.err

    def json(self, *arguments: object, status: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status))


@pytest.fixture
def cache(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def file_with(path: Path, *entries: Entry) -> Path:
    export(entries, path)
    return path


def test_help_names_all_subcommands(cache: Command) -> None:
    page = cache("--help")
    for name in ("list", "show", "export", "import", "merge", "diff", "prune", "path"):
        assert f" {name} " in page


@pytest.mark.usefixtures("filled")
def test_list_shows_every_winner_and_narrows(cache: Command) -> None:
    text = cache("list")
    assert "matmul" in text
    assert "1024x1024x1024" in text
    assert "not measured" in text
    assert MATMUL.key() in text
    assert [record["identity"]["operator"] for record in cache.json("list")] == ["matmul", "matmul", "softmax"]
    assert [record["key"] for record in cache.json("list", "soft")] == [SOFTMAX.key()]
    assert len(cache.json("list", "--shape", "8x8x8")) == 1
    assert cache.json("list", "--arch", "zen4", "--threads", "2", "--dtype", "fp32") == []
    assert "no shape" in cache("list", "--shape", "eight", status=1)


def test_winners_for_other_processors_are_listed_where_they_are_asked_for(cache: Command, filled: Path) -> None:
    autotune.database.put(entry(identity=replace(SOFTMAX, arch="elsewhere")))
    assert len(cache.json("list")) == 3
    assert "1 more are for other processors: --foreign lists them" in cache("list")
    assert len(cache.json("list", "--foreign")) == 4
    assert "more are for" not in cache("list", "--foreign")
    assert [record["identity"]["arch"] for record in cache.json("list", "--arch", "elsewhere")] == ["elsewhere"]


def test_the_processors_of_this_machine_are_its_own() -> None:
    here = kernel_compiler().target
    assert ARCHS()[0] == arch_of(here)
    assert set(ARCHS()) >= {kind_of(here), detect().arch}


@pytest.mark.usefixtures("filled")
def test_show_tells_all_of_an_entry(cache: Command) -> None:
    autotune.database.log(MATMUL, [Trial(OPTIMUM, "ok", timing(1e-3)), Trial(OPTIMUM, "crashed")], {})
    text = cache("show", MATMUL.key())
    assert "1 ok, 1 crashed" in text
    assert "tile=(12,32), kc=256, prefetch=True" in text
    assert "performance" in text
    (record,) = cache.json("show", "softmax")
    assert (record["measured_s"], record["layer"], record["outcomes"]) == (2e-3, "user", {})
    assert "E_ARGUMENT" in cache("show", "conv", status=1)


def test_imported_winners_that_cannot_be_kept_are_a_failure(
    cache: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(autotune._backend()), "archs", ("zen5",))
    file_with(tmp_path / "all.json", entry())
    (tmp_path / "file").write_text("in the way")
    with settings.override(cache_dir=tmp_path / "file" / "cache"), pytest.warns(CacheWarning, match="E_CACHE_IO"):
        said = cache("import", tmp_path / "all.json", status=1)
    assert "E_CACHE_IO: 1 of the winners could not be kept" in said


@pytest.mark.usefixtures("filled")
def test_export_and_import_carry_winners(cache: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.json("export", tmp_path / "all.json") == {"entries": 3}
    assert "1 entries" in cache("export", tmp_path / "one.json", "--name", "softmax")
    assert [each.identity for each in collect(tmp_path / "one.json").entries] == [SOFTMAX]
    done = cache.json("import", tmp_path / "all.json")
    assert done["applied"] == 0
    (reason,) = done["refused"]
    assert reason.startswith("for zen5, this is")
    backend = autotune._backend()
    monkeypatch.setattr(type(backend), "archs", ("zen5",))
    assert cache.json("import", tmp_path / "all.json") == {"applied": 0, "declined": 3, "refused": {}}
    file_with(tmp_path / "better.json", entry(1e-4, kc=64))
    assert "1 applied" in cache("import", tmp_path / "better.json")
    found = autotune.database.lookup(MATMUL)
    assert found is not None
    assert found.entry.schedule["kc"] == 64


@pytest.mark.usefixtures("filled")
def test_a_packed_export_is_a_site_layer(cache: Command, tmp_path: Path) -> None:
    assert len(cache.json("export", tmp_path / "site", "--packed")["files"]) == 2
    assert {each.identity for each in collect(tmp_path / "site").entries} == {MATMUL, SOFTMAX}
    assert "E_CACHE_IO" in cache("export", "/dev/null/site", "--packed", status=1)


def test_merge_keeps_the_fastest_and_leaves_the_cache_alone(cache: Command, tmp_path: Path) -> None:
    first = file_with(tmp_path / "a.json", entry(3e-3, kc=64), entry(None, SOFTMAX))
    second = file_with(tmp_path / "b.json", entry(1e-3, kc=128), entry(identity=SOFTMAX))
    assert cache.json("merge", first, second, "-o", tmp_path / "c.json") == {"entries": 2, "of": 4, "refused": {}}
    found = {each.identity: each for each in collect(tmp_path / "c.json").entries}
    assert found == {MATMUL: entry(1e-3, kc=128), SOFTMAX: entry(identity=SOFTMAX)}
    assert cache.json("list") == []


def test_diff_has_the_status_of_diff(cache: Command, tmp_path: Path) -> None:
    first = file_with(tmp_path / "a.json", entry(), entry(identity=SOFTMAX))
    second = file_with(tmp_path / "b.json", entry(2e-3), entry(identity=SOFTMAX))
    assert "no difference" in cache("diff", first, first)
    (record,) = cache.json("diff", first, second, status=1)
    assert (record["kind"], record["time_ratio"]) == ("time", 2.0)
    assert "2.000" in cache("diff", first, second, status=1)
    autotune.database.put(entry())
    assert [record["kind"] for record in cache.json("diff", first, status=1)] == ["only left"]


def test_prune_removes_what_nothing_needs(cache: Command, filled: Path) -> None:
    left = autotune.database.user.path(MATMUL, "measured").with_name("1x1.json.kept-0123456789ab")
    left.write_bytes(b"{")
    assert [record["file"] for record in cache.json("prune", "--dry-run")] == [str(left)]
    assert "would be removed" in cache("prune", "--dry-run")
    assert left.exists()
    assert "kept aside" in cache("prune")
    assert not left.exists()
    assert "nothing to remove" in cache("prune")
    assert len(cache.json("prune", "--name", "softmax", "--older-than", 1)) == 1
    assert [record["identity"]["operator"] for record in cache.json("list")] == ["matmul", "matmul"]


def test_path_is_the_folder_and_nothing_else(cache: Command, filled: Path) -> None:
    assert cache("path") == f"{filled}\n"
    assert "E_ARGUMENT" in cache("path", "site", status=1)
    user, *_ = cache.json("path")
    assert user == {"layer": "user", "folder": str(filled), "entries": 3, "writable": True}

"""Settings: every variable is read with its type, and a bad value says which one."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from tessera import settings
from tessera.errors import ArgumentError
from tessera.settings import Settings, read, unknown_variables


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read({}) == Settings()
    assert read({"TESSERA_THREADS": "", "PATH": "/bin"}) == Settings()


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("TESSERA_CACHE_DIR", "/var/cache/t", "cache_dir", Path("/var/cache/t")),
        ("TESSERA_THREADS", "4", "threads", 4),
        ("TESSERA_OPENMP", "off", "openmp", False),
        ("TESSERA_MEMORY_LIMIT", "1048576", "memory_limit_bytes", 2**20),
        ("TESSERA_MEMORY_LIMIT", "512M", "memory_limit_bytes", 2**29),
        ("TESSERA_MEMORY_LIMIT", "1.5 GiB", "memory_limit_bytes", 3 * 2**29),
        ("TESSERA_PLAN_CACHE_SIZE", "7", "plan_cache_size", 7),
        ("TESSERA_AUTOTUNE", "1", "autotune", True),
        ("TESSERA_TUNE_SHARE", "0.25", "tune_share", 0.25),
        ("TESSERA_TUNE_SHARE", "first_call", "tune_share", None),
        ("TESSERA_TUNE_BUDGET", "2.5", "tune_budget_s", 2.5),
        ("TESSERA_TUNE_TIMEOUT", "9", "tune_timeout_s", 9.0),
        ("TESSERA_TUNE_SITE_DIR", "/site", "tune_site_dir", Path("/site")),
        ("TESSERA_TUNE_SHIPPED", "0", "tune_shipped", False),
        ("TESSERA_CORE_FACTS", "0", "core_facts", False),
        ("TESSERA_PROFILE_RECORDS", "128", "profile_records", 128),
        ("TESSERA_PROFILE_ATTACH", "0", "profile_attach", False),
        ("TESSERA_PROFILE_HOME", "/run/s", "profile_home", Path("/run/s")),
    ],
)
def test_a_variable_is_read_with_its_type(variable: str, text: str, field: str, value: object) -> None:
    assert getattr(read({variable: text}), field) == value


def test_every_setting_has_a_variable_and_a_meaning() -> None:
    listed = Settings().variables()
    assert len(listed) == len(fields(Settings))
    assert all(name.startswith("TESSERA_") and meaning for name, _, meaning in listed)
    assert len({name for name, _, _ in listed}) == len(listed)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TESSERA_THREADS", "0"),
        ("TESSERA_THREADS", "two"),
        ("TESSERA_OPENMP", "maybe"),
        ("TESSERA_MEMORY_LIMIT", "-1"),
        ("TESSERA_MEMORY_LIMIT", "12 parsecs"),
        ("TESSERA_TUNE_SHARE", "0"),
        ("TESSERA_TUNE_SHARE", "1.5"),
        ("TESSERA_TUNE_SHARE", "nan"),
        ("TESSERA_TUNE_SHARE", "later"),
        ("TESSERA_TUNE_BUDGET", "inf"),
        ("TESSERA_TUNE_BUDGET", "nan"),
    ],
)
def test_a_value_that_cannot_be_read_names_its_variable(variable: str, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"{variable}='{text}'"):
        read({variable: text})


def test_caches_lie_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    defaults = read({})
    assert defaults.autotune_dir == Path("/home/someone/.tessera/autotune")
    assert defaults.objects_dir == Path("/home/someone/.tessera/objects")
    assert defaults.ceilings_dir == Path("/home/someone/.tessera/ceilings")


def test_the_cache_variable_moves_all_of_them() -> None:
    moved = read({"TESSERA_CACHE_DIR": "/scratch/t"})
    assert moved.autotune_dir == Path("/scratch/t")
    assert moved.objects_dir == Path("/scratch/t/objects")
    assert moved.ceilings_dir == Path("/scratch/t/ceilings")


def test_without_a_home_folder_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ArgumentError, match="TESSERA_CACHE_DIR"):
        _ = read({}).objects_dir
    assert read({"TESSERA_CACHE_DIR": "/scratch"}).objects_dir == Path("/scratch/objects")


def test_an_override_ends_with_its_block_even_by_an_exception() -> None:
    before = settings.current()

    def fail() -> None:
        with settings.override(threads=3, openmp=False) as changed:
            assert settings.current() is changed
            assert (changed.threads, changed.openmp) == (3, False)
            assert changed.cache_dir == before.cache_dir
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert settings.current() is before


def test_an_override_of_nothing_that_exists_is_refused() -> None:
    with pytest.raises(TypeError), settings.override(thread=3):
        pass


def test_misspelt_variables_are_found() -> None:
    assert unknown_variables({"TESSERA_THREAD": "1", "TESSERA_THREADS": "1", "TESS": "1"}) == ["TESSERA_THREAD"]

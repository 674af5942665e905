"""Caches with a name: their winners come first once they were asked for, and stay out of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera import settings
from tessera.errors import ArgumentError
from tessera.tuning.store.process_databases import Databases, folder_of
from tests.unit.tuning.support import MATMUL, entry


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with settings.override(cache_dir=tmp_path / "cache", tune_site_dir=None):
        yield tmp_path / "cache"


def test_a_named_cache_is_found_first_and_lies_apart() -> None:
    databases = Databases()
    databases.current.put(entry(1e-3, kc=256))
    databases.named("h100_configs").put(entry(2e-3, kc=128))
    found = databases.current.lookup(MATMUL)
    assert found is not None
    assert (found.layer, found.entry.schedule["kc"]) == ("h100_configs", 128)
    fresh = Databases().current.lookup(MATMUL)
    assert fresh is not None
    assert (fresh.layer, fresh.entry.schedule["kc"]) == ("user", 256)


def test_an_entry_that_is_put_later_is_found_too() -> None:
    databases = Databases()
    named = databases.named("mine")
    assert databases.current.lookup(MATMUL) is None
    named.put(entry())
    assert databases.current.lookup(MATMUL) is not None
    assert databases.named("mine") is named


def test_a_name_lies_in_the_tuning_cache_and_a_path_where_it_leads(cache: Path, tmp_path: Path) -> None:
    assert folder_of("h100_configs") == cache / "caches" / "h100_configs"
    assert folder_of(f"{tmp_path}/configs") == tmp_path / "configs"


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 101, "sm90_cache.json", 3, None])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="no name of a cache"):
        Databases().named(name)


def test_settings_decide_where_names_lie(tmp_path: Path) -> None:
    databases = Databases()
    databases.named("mine").put(entry())
    with settings.override(cache_dir=tmp_path / "elsewhere"):
        assert databases.current.lookup(MATMUL) is None
    assert databases.current.lookup(MATMUL) is not None

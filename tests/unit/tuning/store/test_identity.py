from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.tuning.store.identity import Identity, Provenance
from tests.unit.tuning.support import MATMUL, PROVENANCE, shaped

printable = st.characters(exclude_categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))
texts = st.text(printable | st.just(" "), max_size=20)
identities = st.builds(
    Identity,
    texts,
    st.lists(st.integers(0, 10**6), max_size=40).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
    texts,
    texts,
    texts,
    texts,
    st.integers(1, 512),
)


@given(identities)
def test_identity_survives_json(identity: Identity) -> None:
    assert Identity.from_json(identity.to_json()) == identity


@given(identities)
def test_file_names_are_short_and_portable(identity: Identity) -> None:
    for name in (identity.family(), identity.shape_name()):
        assert 0 < len(name) <= 100
        assert all(letter.isascii() and (letter.isalnum() or letter in "_.-") for letter in name)


def test_file_names_are_readable() -> None:
    assert MATMUL.family().startswith("matmul-fp32-zen5-t2-")
    assert MATMUL.shape_name() == "1024x1024x1024"


@pytest.mark.parametrize(
    "change",
    [
        {"operator": "matmul+gelu"},
        {"dtypes": ("bf16", "bf16")},
        {"layouts": ("rows", "columns")},
        {"math": "tf32"},
        {"accumulation": "bf16"},
        {"determinism": "strict"},
        {"arch": "zen4"},
        {"threads": 1},
    ],
)
def test_every_field_but_the_shape_separates_families(change: dict[str, object]) -> None:
    other = replace(MATMUL, **change)  # type: ignore[arg-type]
    assert other.family() != MATMUL.family()
    assert set(MATMUL.differences(other)) == set(change)


def test_shapes_of_one_family_share_it() -> None:
    assert shaped(1, 2, 3).family() == MATMUL.family()
    assert MATMUL.differences(shaped(1, 2, 3)) == {"shape": ((1024, 1024, 1024), (1, 2, 3))}


def test_distance_is_log2_of_the_ratios() -> None:
    assert MATMUL.distance(shaped(1024, 2048, 512)) == pytest.approx(2.0)
    assert MATMUL.distance(shaped(1024, 1024)) == float("inf")


@pytest.mark.parametrize(
    "damage",
    [
        {"shape": ["a"]},
        {"threads": "2"},
        {"arch": 3},
        {"shape": None},
        {"shape": [True]},
        {"shape": [-1]},
        {"shape": [1 << 63]},
        {"threads": 0},
        {"operator": "\x1b[2J"},
        {"dtypes": "fp32"},
        {"arch": "x" * 9999},
    ],
)
def test_damaged_identity_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Identity.from_json({**MATMUL.to_json(), **damage})


def test_provenance_is_stale_by_version_but_not_by_date_or_mode() -> None:
    assert PROVENANCE.stale_fields(replace(PROVENANCE, date="2026-01-01", mode="model")) == ()
    assert PROVENANCE.stale_fields(replace(PROVENANCE, generator="gen2", clocks="powersave")) == ("generator", "clocks")


def test_current_provenance_names_the_installed_versions() -> None:
    now = Provenance.current("gen9", "on_device")
    assert now.generator == "gen9"
    assert now.torch[0].isdigit()
    assert now.llvm[0].isdigit()
    assert Provenance.from_json(now.to_json()) == now

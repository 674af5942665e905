from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.tuning.store.entry import Entry
from tessera.tuning.store.selection import Selection, differences
from tests.unit.tuning.support import MATMUL, entry, shaped


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (Selection(), True),
        (Selection("mat"), True),
        (Selection("soft"), False),
        (Selection(MATMUL.key()), True),
        (Selection(MATMUL.key()[:5]), True),
        (Selection(shape=(1024, 1024, 1024)), True),
        (Selection(shape=(1024, 1024)), False),
        (Selection(dtype="fp32", arch="zen5", threads=2, origin="measured"), True),
        (Selection(dtype="bf16"), False),
        (Selection(arch="zen4"), False),
        (Selection(threads=1), False),
        (Selection(origin="model"), False),
    ],
)
def test_a_selection_picks_by_all_that_it_says(selection: Selection, chosen: bool) -> None:
    assert selection(entry()) is chosen


def test_keys_tell_identities_apart() -> None:
    assert MATMUL.key() == shaped(*MATMUL.shape).key()
    assert MATMUL.key() != shaped(1, 1, 1).key()
    assert len(MATMUL.key()) == 12


def test_differences_name_what_differs_first() -> None:
    shapes = [shaped(m, 1, 1) for m in range(1, 7)]
    left = [entry(identity=identity) for identity in shapes[:5]]
    changed: list[Entry] = [
        left[1],
        replace(left[2], schedule=left[2].schedule.replace(kc=64), measured_s=5e-4),
        replace(left[3], measured_s=2e-3),
        replace(left[4], provenance=replace(left[4].provenance, torch="9")),
        entry(identity=shapes[5]),
    ]
    found = differences(left, changed)
    assert [(each.identity.shape[0], each.kind) for each in found] == [
        (1, "only left"),
        (3, "schedule"),
        (4, "time"),
        (5, "provenance"),
        (6, "only right"),
    ]
    assert [each.ratio for each in found] == [None, pytest.approx(0.5), pytest.approx(2.0), pytest.approx(1.0), None]


def test_equal_collections_do_not_differ() -> None:
    entries = [entry(), entry(None)]
    assert differences(entries, reversed(entries)) == []

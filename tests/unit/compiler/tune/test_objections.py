"""Winners that come from files: what is illegal here is told, for kernels of one operator, before they are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tessera import op
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Provenance

BACKEND = CompilerBackend()
PROVENANCE = Provenance.current("revision", "on_device")


def winner(operator: Callable[..., Any], shapes: object) -> Entry:
    """An entry of what the cost model would choose."""
    problem = BACKEND.subject(operator, shapes, None)
    return Entry(problem.identity, problem.space.default, "measured", PROVENANCE, None, 1e-4)


@pytest.mark.parametrize(("operator", "shapes"), [(op.matmul, (64, 96, 128)), (op.softmax, (32, 200))])
def test_what_is_legal_meets_no_objection(operator: Callable[..., Any], shapes: object) -> None:
    assert BACKEND.objection(winner(operator, shapes)) is None


@pytest.mark.parametrize(("operator", "shapes"), [(op.matmul, (64, 96, 128)), (op.softmax, (32, 200))])
def test_what_is_not_legal_is_named(operator: Callable[..., Any], shapes: object) -> None:
    entry = winner(operator, shapes)
    foreign = BACKEND.objection(replace(entry, schedule=Schedule(colour="green")))
    assert foreign is not None
    assert "knob colour" in foreign
    oversized = entry.schedule.replace(tile=tuple(1 << 14 for _ in entry.schedule.integers("tile")))
    broken = BACKEND.objection(replace(entry, schedule=oversized))
    assert broken is not None
    assert broken.startswith("its schedule is illegal here (")
    assert "knob" not in broken


@pytest.mark.parametrize("change", [{"operator": "matmul_gelu"}, {"arch": "z80"}, {"threads": 511}, {"dtypes": ()}])
def test_kernels_that_cannot_be_posed_are_not_judged(change: dict[str, Any]) -> None:
    entry = winner(op.matmul, (64, 96, 128))
    elsewhere = replace(entry, identity=replace(entry.identity, **change), schedule=Schedule(colour="green"))
    assert BACKEND.objection(elsewhere) is None

"""Compiling puts garbage collection off, and leaves it as it was."""

from __future__ import annotations

import gc

import pytest
import torch

from tessera import op
from tessera.compiler import pipeline
from tessera.compiler.process.collection import NEVER, collecting_later


def is_put_off() -> bool:
    return gc.get_threshold()[0] == NEVER


def test_collections_are_put_off_and_come_back() -> None:
    before = gc.get_threshold()
    with collecting_later():
        assert is_put_off()
        with collecting_later():
            pass
        assert is_put_off()
    assert gc.get_threshold() == before


def test_an_error_leaves_collections_as_they_were() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="stop"), collecting_later():
        raise ValueError("stop")
    assert gc.get_threshold() == before


def test_what_the_program_says_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with collecting_later():
            gc.disable()
            gc.set_threshold(123, 4, 5)
        assert not gc.isenabled()
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.enable()
        gc.set_threshold(*before)


def test_binding_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    bind = pipeline.bind  # type: ignore[attr-defined]

    def watched(*arguments: object) -> object:
        seen.append(is_put_off())
        return bind(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "bind", watched)
    x = torch.randn(3, 41)
    torch.testing.assert_close((op.exp(x) * 0.75 - 3.25).torch(), x.exp() * 0.75 - 3.25)
    assert seen == [True]
    assert not is_put_off()

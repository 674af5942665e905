"""Compiling puts garbage collection off, and leaves it as it was."""

from __future__ import annotations

import gc

import pytest
import torch

from tessera import op
from tessera.compiler import pipeline
from tessera.compiler.collection import collecting_later


def test_collections_are_put_off_and_come_back() -> None:
    with collecting_later():
        assert not gc.isenabled()
        with collecting_later():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_leaves_collections_on() -> None:
    with pytest.raises(ValueError, match="stop"), collecting_later():
        raise ValueError("stop")
    assert gc.isenabled()


def test_a_program_that_collects_by_itself_goes_on_doing_so() -> None:
    gc.disable()
    try:
        with collecting_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_binding_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    bind = pipeline.bind  # type: ignore[attr-defined]

    def watched(*arguments: object) -> object:
        seen.append(gc.isenabled())
        return bind(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "bind", watched)
    x = torch.randn(3, 41)
    torch.testing.assert_close((op.exp(x) * 0.75 - 3.25).torch(), x.exp() * 0.75 - 3.25)
    assert seen == [False]
    assert gc.isenabled()

"""Streams of a real GPU: order by memory, by events, copies from pinned memory, and results against float64."""

from __future__ import annotations

import pytest
import torch

from tessera import event, memcpy, op, stream
from tessera.errors import StreamRaceError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def test_copies_and_products_overlap_and_are_right() -> None:
    load, compute = stream.create("load", device="cuda"), stream.create("compute", device="cuda")
    weights = torch.randn(512, 256, device="cuda")
    buffers = [torch.empty(300, 512, device="cuda") for _ in range(2)]
    batches = [memcpy.pin(torch.randn(300, 512)) for _ in range(8)]
    results = []
    for step, batch in enumerate(batches):
        copy = memcpy.async_(dst=buffers[step % 2], src=batch, stream=load)
        assert (copy.direction, copy.pinned) == ("h2d", True)
        results.append(op.matmul(buffers[step % 2], weights, stream=compute))
    for batch, result in zip(batches, results, strict=True):
        expected = batch.double() @ weights.cpu().double()
        torch.testing.assert_close(result.torch().cpu().double(), expected, atol=1e-3, rtol=1e-3)


def test_a_copy_back_is_waited_for() -> None:
    s = stream.create(device="cuda")
    x = torch.randn(1 << 22, device="cuda")
    back = memcpy.pinned(x.shape, x.dtype)
    back.fill_(torch.nan)
    memcpy.async_(dst=back, src=op.exp(x, stream=s), stream=s)
    torch.testing.assert_close((op.tensor(back) * 1).torch(), x.exp().cpu(), rtol=1e-5, atol=1e-5)


def test_pinned_memory_that_the_program_drops_is_copied_as_it_was() -> None:
    s = stream.create(device="cuda")
    busy, x = torch.randn(4096, 4096, device="cuda"), torch.empty((1 << 20) - 1, device="cuda")
    for step in range(10):
        op.matmul(busy, busy, stream=s)
        memcpy.async_(dst=x, src=memcpy.pin(torch.full((1 << 20,), float(step)))[1:], stream=s)
        memcpy.pin(torch.full((1 << 20,), -1.0))  # torch may give it the memory that was dropped
        s.synchronize()
        assert (x == step).all()


def test_what_the_program_does_comes_before() -> None:
    s = stream.create(device="cuda")
    for _ in range(20):
        x = torch.randn(1 << 20, device="cuda")
        y = op.neg(x, stream=s)
        del x  # torch may give its memory to others once the stream has read it
        filled = torch.full((1 << 20,), 7.0, device="cuda")
        assert not (y.torch() == -7).any()
        assert (filled == 7).all()


def test_a_missing_wait_is_a_race() -> None:
    load, compute = (stream.create(name, device="cuda", sync="manual") for name in ("load", "compute"))
    x, loaded = torch.zeros(64, device="cuda"), event.create()
    torch.cuda.synchronize()
    memcpy.async_(dst=x, src=memcpy.pin(torch.ones(64)), stream=load)
    with pytest.raises(StreamRaceError):
        op.exp(x, stream=compute)
    loaded.record(load)
    loaded.wait(compute)
    torch.testing.assert_close(op.exp(x, stream=compute).torch().cpu(), torch.ones(64).exp())


def test_pageable_memory_is_reported() -> None:
    s = stream.create(device="cuda")
    x = torch.zeros(64, device="cuda")
    with pytest.warns(memcpy.PageableMemoryWarning):
        copy = memcpy.async_(dst=x, src=torch.ones(64), stream=s)
    assert copy.pinned is False
    copy.wait()
    assert x.all()

"""The examples of blocks and models compute what torch does, on sizes that take no time."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from examples import gpt2, gpt2_block, llama_block, mesh_72, resnet50, train_gpt
from tests.whole import some


@pytest.mark.parametrize(
    ("tokens", "attention"),
    some(product((1, 7, 33), (gpt2_block.flash, gpt2_block.algebra)), lambda case: case[0]),
)
def test_a_gpt2_block_is_torchs(tokens: int, attention: gpt2_block.Attention) -> None:
    module = gpt2_block.random_block(width=40, heads=5)
    x = torch.randn(2, tokens, 40)
    found = gpt2_block.block(x, gpt2_block.constants(module), 5, attention)
    with torch.no_grad():
        torch.testing.assert_close(found.torch(), module(x), atol=1e-5, rtol=1e-4)


def test_the_gpt2_example_says_what_it_found() -> None:
    lines: list[str] = []
    assert gpt2_block.main(width=48, heads=4, tokens=9, write=lines.append) < 1e-5
    assert "9 tokens of width 48" in lines[0]


@pytest.mark.parametrize(
    ("tokens", "attention"),
    some(product((1, 7, 33), (llama_block.algebra, llama_block.flash)), lambda case: case[0]),
)
def test_a_llama_block_is_torchs(tokens: int, attention: llama_block.Attention) -> None:
    module = llama_block.random_block(width=48, heads=6, kv_heads=2, hidden=80, tokens=40)
    x = torch.randn(2, tokens, 48)
    found = llama_block.block(x, llama_block.constants(module), module.size, attention)
    with torch.no_grad():
        torch.testing.assert_close(found.torch(), module(x), atol=1e-5, rtol=1e-4)


def test_the_llama_example_says_what_it_found() -> None:
    lines: list[str] = []
    assert llama_block.main(width=48, heads=4, kv_heads=2, hidden=64, tokens=9, write=lines.append) < 1e-5
    assert "9 tokens of width 48" in lines[0]


@pytest.mark.parametrize("shape", [(1,), (9,), (2, 5)])
def test_gpt2_is_torchs(shape: tuple[int, ...]) -> None:
    module = gpt2.random_model(width=24, heads=3, blocks=2, vocabulary=53, longest=16)
    tokens = gpt2.random_tokens(*shape, vocabulary=53)
    found = gpt2.logits(tokens, *gpt2.constants_of(module), module.heads)
    with torch.no_grad():
        torch.testing.assert_close(found.torch(), module(tokens), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("count", "side"), [(1, 32), (2, 45)])
def test_a_resnet_is_torchs(count: int, side: int) -> None:
    network = resnet50.random_network(width=8, depths=(1, 2), classes=7)
    images = resnet50.random_images(count, side)
    found = resnet50.logits(images, resnet50.weights_of(network))
    with torch.no_grad():
        torch.testing.assert_close(found.torch(), network(images), atol=1e-5, rtol=1e-4)


def test_the_resnet_example_says_what_it_found() -> None:
    lines: list[str] = []
    assert resnet50.main(side=32, depths=(1,), write=lines.append) < 1e-5
    assert "ResNet of 1 blocks, 32 x 32 pixels" in lines[0]


def test_a_gpt_is_trained_as_eagerly(tmp_path: Path) -> None:
    torch._dynamo.reset()
    report = train_gpt.train(steps=3)
    assert report.losses == pytest.approx(report.eager_losses, abs=1e-4)
    assert report.losses[-1] < report.losses[0]
    assert len(report.sample) == 201
    assert train_gpt.plot(report, tmp_path / "losses.png").stat().st_size > 1000


def test_72_devices_are_planned_without_any() -> None:
    lines: list[str] = []
    plan = mesh_72.main(lines.append)
    told = "\n".join(lines)
    assert "tp=6, pp=4, dp=3, abstract" in told
    assert "166.7 GB for each of 6 x 4 shards" in told
    assert "tessera run --ranks 72" in told
    assert str(plan) in told
    assert plan.best.candidate.devices + plan.best.spare == mesh_72.DEVICES

"""Every way in which a call becomes several: it is explained by its name, and gives what the call does.

Chunks of long rows, split-K and the two walks of attention's gradient, which are ways of GPUs, are run by
`tests/unit/compiler/device` and `tests/unit/compiler/test_attention_gradient_devices.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tessera.scheduling.families
from tessera import op
from tessera.compiler import pipeline
from tessera.compiler.decompose import cases
from tessera.handle import Tensor
from tessera.ops import oracle
from tessera.scheduling.families import registry
from tessera.scheduling.families.decomposition import Decomposition
from tessera.scheduling.families.registry import families
from tessera.scheduling.families.unfused import UNFUSED

OF_GPUS = {"chunks", "split-k", "two-walks"}


def normal(*shape: int) -> Tensor:
    return op.tensor(torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))))


def gated(m: int, k: int, n: int) -> Tensor:
    x = normal(m, k)
    result: Tensor = op.silu(op.matmul(x, normal(k, n))) * op.matmul(x, normal(k, n))
    return result


def normed(m: int, k: int, n: int) -> Tensor:
    return op.relu(op.matmul(op.layer_norm(normal(m, k)), normal(k, n)))


def centred(rows: int, columns: int) -> Tensor:
    chain = op.tanh(op.gelu(op.silu(normal(rows, columns))))
    result: Tensor = chain - op.mean(chain, axis=0, keepdims=True)
    return result


def attended(queries: int, keys: int) -> Tensor:
    return op.flash_attention(normal(1, 2, queries, 17), normal(1, 2, keys, 17), normal(1, 2, keys, 9))


def turned(*shape: int) -> Tensor:
    return op.transpose(normal(*shape), (0, 2, 1, 3))


WAYS: dict[str, Callable[[], Tensor]] = {
    "unfused": lambda: op.gelu(op.matmul(normal(13, 37), normal(37, 29)) + normal(29)).pin(fusion=False),
    "norm-alone": lambda: normed(19, 37, 5),
    "products-alone": lambda: gated(23, 41, 3),
    "products-faster-alone": lambda: gated(9, 61, 47),
    "norm-first": lambda: normed(2, 16_500, 13),
    "norm-faster-first": lambda: normed(19, 37, 21),
    "stages": lambda: centred(53, 31),
    "parts-of-keys": lambda: attended(1, 711).pin(lanes="head", micro=(2, 2), parts=4),
    "shared-packing": lambda: op.matmul(normal(35, 67), normal(67, 51)).pin(pack_b="shared"),
    "packed-weights": lambda: op.relu(op.conv2d(normal(2, 3, 11, 9), normal(5, 3, 3, 2), padding=1)),
    "on-copies": lambda: op.sum(turned(3, 13, 5, 7) * 2.5, axis=(1, 2)),
    "parts-of-columns": lambda: op.sum(op.softmax(normal(70, 13)), axis=0),
    "few-rows-apart": lambda: op.sum(op.softmax(normal(3, 30_000)), axis=0),
    "rows-apart-from-columns": lambda: op.sum(op.softmax(op.transpose(normal(13, 7), (1, 0))), axis=0),
    "operation-by-operation": lambda: op.sum(turned(2, 5, 6, 5) + normal(6, 1, 1), axis=(1, 2, 3)),
}


@pytest.fixture
def whatever_the_model_says(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What pays by the cost model is done wherever it can be."""
    listed = registry.decompositions
    monkeypatch.setattr(
        cases, "decompositions", lambda family, when: [replace(each, pays=None) for each in listed(family, when)]
    )
    pipeline.forget_plans()
    yield
    pipeline.forget_plans()


def test_every_decomposition_is_run() -> None:
    names = {each.name for family in families() for each in (UNFUSED, *family.decompositions)}
    assert names == set(WAYS) | OF_GPUS


@pytest.mark.usefixtures("whatever_the_model_says")
@pytest.mark.parametrize("name", WAYS)
def test_a_call_in_steps_gives_what_it_gives_at_once(name: str) -> None:
    result = WAYS[name]()
    assert f"    {name}: " in result.inspect("fusion")
    torch.testing.assert_close(result.torch().double(), oracle.reference(result), rtol=2e-4, atol=2e-4)


CACHED = (
    registry.families,
    registry._by_class,
    registry._models,
    registry.family_of_region,
    registry.decompositions,
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decomposition]:
    """The family of the folder `toys`, as if it stood beside the others."""
    path = [*tessera.scheduling.families.__path__, str(Path(__file__).parent / "toys")]
    monkeypatch.setattr(tessera.scheduling.families, "__path__", path)
    for each in CACHED:
        each.cache_clear()
    pipeline.forget_plans()
    yield next(way for way in registry.decompositions("row", "call") if way.name == "detour")
    monkeypatch.undo()
    for each in CACHED:
        each.cache_clear()
    pipeline.forget_plans()


@pytest.mark.parametrize("shape", [(7, 13), (1, 1), (3, 5, 67)])
def test_a_decomposition_is_one_value_in_the_file_of_its_family(toy: Decomposition, shape: tuple[int, ...]) -> None:
    result = op.exp(normal(*shape)) * 0.75 - 2.0
    told = result.inspect("fusion").splitlines()
    assert told[1] == f"    detour: {toy.why}"
    name = told[0].split(":")[0]
    assert told[2:4] == [f"      0: {name}_there writes there", f"      1: {name}_back reads there"]
    assert told[4].startswith("      there: fp32 ")
    torch.testing.assert_close(result.torch().double(), oracle.reference(result))


def test_without_that_file_nothing_knows_it() -> None:
    assert "detour" not in (op.exp(normal(7, 13)) * 0.75 - 2.0).inspect("fusion")

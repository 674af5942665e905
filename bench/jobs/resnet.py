"""Whole models with random weights, inference: ResNet-50."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn

from bench.jobs.blocks import DTYPES, GOALS, SEED
from bench.jobs.job import Call, Inputs, Job
from examples import resnet50

TOLERANCE = {"fp32": 5e-5, "bf16": 5e-2}
"""Of the largest logit; what 53 convolutions round adds up."""

BATCHES = (1, 8)


def _resnet(module: nn.Module, inputs: Inputs) -> Call:
    assert isinstance(module, resnet50.Network)
    weights = resnet50.weights_of(module)
    return lambda: resnet50.logits(inputs[0], weights).eval()


def _resnet_jobs(quick: bool) -> Iterator[Job]:
    side = 32 if quick else 224
    small = {"width": 8, "depths": (1, 2), "classes": 10} if quick else {}
    for count in BATCHES[:1] if quick else BATCHES:
        for name, dtype in DTYPES.items():
            yield Job(
                name=f"ResNet-50 {name}, batch {count}",
                goal=GOALS,
                inputs=lambda count=count, dtype=dtype: (  # type: ignore[misc]
                    resnet50.random_images(count, side, dtype, SEED),
                ),
                module=partial(resnet50.random_network, dtype=dtype, seed=SEED, **small),  # type: ignore[arg-type]
                ours=_resnet,
                tolerance=TOLERANCE[name],
                dtype=name,
                memory=True,
            )


def jobs(quick: bool) -> list[Job]:
    """The jobs of this theme; small ones when `quick`."""
    return [*_resnet_jobs(quick)]

"""Schedules of every family on CPUs: spaces large enough to search, any knob pinned, winners measured and used."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tessera import Tensor, autotune, op, settings
from tessera.compiler import pipeline, planning
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import AnySpace
from tessera.compiler.tune.tuning import heaviest_problem
from tessera.scheduling.language.schedule import Schedule
from tessera.target import detect
from tessera.tuning.options import options
from tests.whole import examples

GENERATOR = torch.Generator().manual_seed(11)
functional = torch.nn.functional


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


A, B, B_TURNED = normal(40, 150), normal(150, 70), normal(70, 150)
NARROW_A, NARROW_B = normal(40, 150, dtype=torch.bfloat16), normal(150, 70, dtype=torch.bfloat16)
BYTES_A, BYTES_B = ((normal(*shape) * 40).to(torch.int8) for shape in ((40, 150), (150, 70)))
COLUMN = normal(150, 2)
Q, K, V = (normal(2, 3, rows, 40) for rows in (33, 70, 70))
IMAGE, WEIGHTS, TAPS = normal(2, 16, 19, 23), normal(40, 16, 3, 3), normal(16, 1, 3, 3)

EXPRESSIONS: dict[str, tuple[Callable[[], Tensor], torch.Tensor]] = {
    "product": (lambda: op.matmul(A, B), A.double() @ B.double()),
    "product of few columns": (lambda: op.matmul(A, COLUMN), A.double() @ COLUMN.double()),
    "bf16 product": (lambda: op.matmul(NARROW_A, NARROW_B), NARROW_A.double() @ NARROW_B.double()),
    "bytes": (lambda: op.matmul(BYTES_A, BYTES_B), BYTES_A.double() @ BYTES_B.double()),
    "constant": (lambda: op.matmul(A, op.constant(B)), A.double() @ B.double()),
    "turned constant": (
        lambda: op.relu(op.matmul(A, op.constant(B_TURNED).T)),
        (A.double() @ B_TURNED.double().T).relu(),
    ),
    "bf16 constant": (lambda: op.matmul(NARROW_A, op.constant(NARROW_B)), NARROW_A.double() @ NARROW_B.double()),
    "constant bytes": (lambda: op.matmul(BYTES_A, op.constant(BYTES_B)), BYTES_A.double() @ BYTES_B.double()),
    "attention": (
        lambda: op.flash_attention(Q, K, V),
        functional.scaled_dot_product_attention(Q.double(), K.double(), V.double()),
    ),
    "convolution": (
        lambda: op.conv2d(IMAGE, WEIGHTS, padding=1),
        functional.conv2d(IMAGE.double(), WEIGHTS.double(), padding=1),
    ),
    "window": (
        lambda: op.depthwise_conv2d(IMAGE, TAPS, padding=1),
        functional.conv2d(IMAGE.double(), TAPS.double(), padding=1, groups=16),
    ),
}


def close(result: torch.Tensor, exact: torch.Tensor) -> None:
    limit = 2e-2 if result.dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(result.double(), exact, rtol=limit, atol=limit * 10)


def launch_of(tensor: Tensor) -> Launch:
    """The kernel that does most of the work."""
    launches = launches_of(planning.program_of(tensor.structure), tensor.structure, compilers.kernel_compiler())
    return launches[-1] if launches[-1].call.item.family != "row" else launches[0]


def space_of(tensor: Tensor) -> AnySpace:
    launch, compiler = launch_of(tensor), compilers.kernel_compiler()
    call = launch.whole or launch.call
    subject = compiler.subject(call)
    return compiler.space(subject, subject.problem(call.shaped.extents, 1))


@pytest.mark.parametrize("name", ["product", "bf16 product", "bytes", "constant", "attention", "convolution"])
def test_a_space_holds_hundreds_of_schedules(name: str) -> None:
    build, _ = EXPRESSIONS[name]
    space, generator = space_of(build()), random.Random(5)
    wanted = 500 if detect().vector_registers >= 32 else 400  # fewer registers hold fewer tiles
    found: set[Schedule] = set()
    for _ in range(2000):
        found.add(space.draw(generator))
        if len(found) == wanted:
            break
    assert len(found) == wanted


@pytest.mark.parametrize("name", [name for name in EXPRESSIONS if name != "product of few columns"])
def test_every_knob_may_be_pinned(name: str) -> None:
    build, exact = EXPRESSIONS[name]
    space = space_of(build())
    moves: dict[str, Schedule] = {}
    for schedule in space.neighbours(space.default):
        changed = next(knob for knob, value in schedule.items() if space.default[knob] != value)
        moves.setdefault(changed, schedule)
    assert len(moves) >= 3
    share = examples(2, 1)  # each knob in half of the expressions
    for knob, schedule in list(moves.items())[list(EXPRESSIONS).index(name) % share :: share]:
        pinned = build().pin(**{knob: schedule[knob]})
        close(pinned.torch(), exact)


@pytest.mark.parametrize("name", ["bytes", "turned constant", "constant bytes", "attention"])
def test_winners_are_measured_and_used(name: str, tmp_path: Path) -> None:
    build, exact = EXPRESSIONS[name]
    with settings.override(cache_dir=tmp_path):
        problem = heaviest_problem(build().structure)
        assert problem is not None
        config = autotune.solve(problem, options(max_trials=4))
        assert config.measured_s is not None
        pipeline.forget_plans()
        tensor = build()
        assert autotune.solve(problem).source == "cache"
        chosen = launch_of(tensor).schedule
        expected = (
            config.schedule.replace(pack_b=False) if config.schedule.get("pack_b") == "shared" else config.schedule
        )
        assert chosen == expected
        close(tensor.torch(), exact)
    pipeline.forget_plans()

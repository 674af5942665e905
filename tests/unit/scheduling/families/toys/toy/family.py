"""A family in a file, as an example: running sums down the columns of a matrix, with a knob that no other has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp

from tessera.dtypes import fp32
from tessera.scheduling.families.family import PARALLEL_BYTES, Family, Poser
from tessera.scheduling.language.columns import Knobs
from tessera.scheduling.language.expression import Recorder
from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import Argument, Output, kernel_module
from tessera.scheduling.model.machine import Machine, Work, largest_share
from tessera.target import Target

MATRIX = Argument(fp32, ("m", "n"), (None, 1))


@dataclass(frozen=True)
class RunningSumsSpec:
    """Running sums of fp32 [m, n] along m: the argument, and where its sums go."""

    name: str = "running_sums"
    arguments: tuple[Argument, ...] = (MATRIX, MATRIX)
    outputs: tuple[Output, ...] = (Output(1, Recorder(None).load(0, fp32, ("m", "n"))),)


@dataclass(frozen=True)
class RunningSumsProblem:
    """The extents, and the workers that share the columns."""

    m: int
    n: int
    target: Target
    workers: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.m, self.n


def _space(problem: RunningSumsProblem) -> Space[RunningSumsProblem]:
    knobs = (
        Knob("tile", ((8,), (16,), (32,)), "columns whose sums are in registers at a time"),
        Knob("ahead", (0, 4, 16), "rows by which loads run ahead; 0: as the hardware does"),
        Knob("fusion", (True,), "there is nothing to take apart"),
    )
    return Space(knobs, RULES, problem, _start(problem))


def _start(problem: RunningSumsProblem) -> Schedule:
    return Schedule(tile=(16,), ahead=0, fusion=True)


RULES: tuple[Rule[RunningSumsProblem], ...] = (
    Rule(
        "ahead-within-matrix",
        "loads run ahead where so many rows follow",
        lambda schedule, problem: schedule["ahead"] == 0 or schedule.integer("ahead") < problem.m,
    ),
)


def _work(problem: RunningSumsProblem, schedule: Knobs, rates: Machine) -> Work:
    nbytes = 8 * problem.m * largest_share(problem.n, 1, problem.workers)
    work = Work(nbytes / rates.vector_bytes * rates.cycle_s)
    work.move(rates.home(nbytes), nbytes)
    return work


def _pose(spec: RunningSumsSpec, target: Target) -> Poser:
    def pose(extents: Mapping[str, int], workers: int) -> RunningSumsProblem:
        return RunningSumsProblem(extents["m"], extents["n"], target, workers)

    return pose


def _lower(spec: RunningSumsSpec, schedule: Schedule, target: Target) -> ModuleOp:
    (width,), ahead = schedule.integers("tile"), schedule.integer("ahead")
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    builder = TileBuilder(block)
    source, sums = arguments[0].value, arguments[1].value
    rows, columns = builder.extent(source, 0), builder.extent(source, 1)
    with builder.parallel([columns], [width], 0) as [share], builder.loop(*share, width, macro_tile=True) as across:
        nothing = builder.splat(0.0, fp32, (width,))
        with builder.loop(builder.index(0), rows, 1, [nothing]) as down:
            place = [down.index, across.index]
            if ahead:
                later = builder.minimum(builder.add(down.index, builder.index(ahead)), rows)
                builder.prefetch(source, [later, across.index], 1, width, False)
            more = builder.load(source, place, (1,), (width,), (False,))
            total = builder.append(arith.AddfOp(down.carried[0], more))
            builder.store(total, sums, place, (1,), (False,))
            down.yielded = (total,)
    return module


FAMILY = Family(
    name="toy",
    kernels="running sums",
    spec=RunningSumsSpec,
    problem=RunningSumsProblem,
    lower=_lower,
    space=_space,
    rules=RULES,
    start=_start,
    pose=_pose,
    work=_work,
    sum_order=lambda schedule, problem: (),  # row after row, whatever the schedule
    is_shared=lambda problem: 8 * problem.m * problem.n >= PARALLEL_BYTES,
    accumulation=lambda problem: "fp32",
)

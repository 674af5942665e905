"""Whether a kernel runs as one, or in stages: dear maps apart from reductions, norms apart from products.

y = gelu(tanh(a));  y - mean(y, axis=0)      one kernel: y twice, for the means and for what they are taken from
                                             stages:     y -> memory;  y -> means;  y, means -> result

A kernel that reduces walks its rows, or down its columns, once for each pass, and in every one makes anew what it does
not keep; a row of 17 elements takes as long as one of 32, and a long chain over one vector waits for itself. Maps alone
do neither. What fusion saves is memory traffic. The cost model compares both, once for extents of about the same size.
A product that normalizes its rows on the way (`families/product/norms.py`) does so for each block of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tessera.compiler.bind.arrays import Call, View
from tessera.compiler.bind.launcher import Launcher
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, PlanCompiler, kernel_launches
from tessera.compiler.decompose.splitting import rows_apart, stages_of
from tessera.compiler.graph.program import KernelItem, Program
from tessera.lazy.policy import current_policy
from tessera.lazy.threads import worker_count
from tessera.ops.counting import DEAR
from tessera.ops.record import family_of
from tessera.rewrite.depth import instructions_of
from tessera.rewrite.reasons import operations_in
from tessera.scheduling.families.product.problem import DEPTHS
from tessera.scheduling.language.sizes import size_class
from tessera.scheduling.model.estimate import Estimate

CONVINCING: Final = 1.05
"""How much longer the model must expect one kernel of maps and reductions to take: stages take memory. Where it errs it
is in favour of one kernel: of expressions that ran 1.3 to 2.9 times as fast in stages it expected 1.14 to 1.5.
"""
OTHER_BLOCKS: Final = 1.15
"""The same for a product whose blocks are other ones when it normalizes rows: about so much the model errs by."""
WORTH_COMPILING_S: Final = 3e-6
"""Seconds a call below which stages are not worth kernels of their own."""


class EstimatingCompiler(PlanCompiler[Any], Protocol):
    """A compiler that knows what launches cost."""

    def estimate(self, launch: Launch) -> Estimate:
        """What the cost model expects of a launch."""


@dataclass
class Stages:
    """What was decided, by kernel, workers and sizes."""

    compiler: EstimatingCompiler
    decided: dict[object, bool] = field(default_factory=dict)

    def of(
        self, call: Call, choice: Choice, extents: Mapping[str, int], inputs: Sequence[View], outputs: Sequence[View]
    ) -> Program | None:
        """The stages of a call that are faster than its kernel; None where it runs as one.

        A user's pins speak of the kernel; a fixed order of sums may not depend on what a model expects.
        """
        item = call.item
        if item.takes_rows:
            return self._before_product(call, choice, extents, inputs, outputs)
        if item.reduced is None or not _has_dear_maps(item) or choice.subject.pins or current_policy().fixed_order:
            return None
        program = stages_of(item)
        if program is None:
            return None
        return program if self._is_faster(program, call, choice, extents, inputs, outputs) else None

    def _before_product(
        self, call: Call, choice: Choice, extents: Mapping[str, int], inputs: Sequence[View], outputs: Sequence[View]
    ) -> Program | None:
        """The norm of a product's rows and then the product, where that is faster or pinned, or K fits no block."""
        program = rows_apart(call.item)
        if choice.subject.pins or current_policy().fixed_order or extents[call.item.domain[-1]] > DEPTHS[-1]:
            return program
        faster = self._is_faster(program, call, choice, extents, inputs, outputs)
        return program if faster else None

    def _is_faster(
        self,
        program: Program,
        call: Call,
        choice: Choice,
        extents: Mapping[str, int],
        inputs: Sequence[View],
        outputs: Sequence[View],
    ) -> bool:
        sizes = [size_class(extent) for extent in call.shaped.extents.values()]
        key = (choice.subject, choice.workers, worker_count(), *sizes)
        if key not in self.decided:
            rival = _Rehearsal(self.compiler, extents).rehearsed(program, inputs, outputs)
            alone = self.compiler.estimate(Launch(call, choice)).seconds
            staged = sum(self.compiler.estimate(launch).seconds for launch in rival)
            # The model is trusted with a little less work in blocks of the same sizes, not with blocks of others.
            alike = any(launch.schedule["tile"] == choice.schedule["tile"] for launch in rival)
            if not call.item.takes_rows:
                self.decided[key] = alone > staged * CONVINCING and alone - staged > WORTH_COMPILING_S
            else:
                self.decided[key] = alone * (1.0 if alike else OTHER_BLOCKS) > staged
        return self.decided[key]


def _has_dear_maps(item: KernelItem) -> bool:
    """Whether a kernel holds maps that together are dear. Kept with the kernel: this is asked at every binding."""
    if "dear" not in item.variants:
        maps = (op for op in operations_in(item.operation) if family_of(op.operator) == "elementwise")
        item.variants["dear"] = sum(instructions_of(op) for op in maps) >= DEAR
    return bool(item.variants["dear"])


class _Rehearsal(Launcher):
    """Finds launches without placing anything in memory."""

    def rehearsed(self, program: Program, inputs: Sequence[View], outputs: Sequence[View]) -> list[Launch]:
        """The launches of a program over these arguments and results."""
        self._run(program, {**dict(enumerate(inputs)), **dict(zip(program.roots, outputs, strict=True))}, None)
        return kernel_launches(self.launches)

    def _note(self, launch: AnyLaunch) -> None:
        self.launches.append(launch)

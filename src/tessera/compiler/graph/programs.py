"""The programs of a form, and which of them a structure runs.

A form is rewritten without knowing extents. Where an idiom was recognized (`rewrite/rules/idioms.py`) there is more
than one program: with it, whose guards these extents may not meet, with fewer idioms, and as it was written, which is
what a strict numerics policy gets and what may be faster where an idiom's kernel has little to do. The cost model
decides between the two, once for extents of about the same size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tessera.compiler.bind.binding import extents_of, launches_of
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.graph.building import build_graph
from tessera.compiler.graph.program import Item, KernelItem, Program, read_program
from tessera.lazy.policy import Policy
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.lazy.structures.symbolic import SymbolicForm
from tessera.lazy.threads import worker_count
from tessera.rewrite.passes import ALL_IDIOMS, RewritePass
from tessera.scheduling.families.registry import family_of_region
from tessera.scheduling.language.sizes import size_class

MANY_SCORES: Final = 1 << 12
"""Scores of a head from which on the program without idioms is not even made, which takes milliseconds."""

MUCH: Final = 2.0
"""How many times as fast the program without idioms has to be by the model. On Zen 4 attention was never slower than
its products, from 8 to 1024 keys; the model overestimates it by up to 3 times where there is one query.
"""

Passes = Callable[[int], Sequence[RewritePass]]
"""The passes that a form goes through, by how many idioms are recognized."""


class Programs:
    """The programs of one form, each made when it is first asked for. `made` are those that there are."""

    def __init__(self, form: SymbolicForm, passes: Passes) -> None:
        self._form, self._passes = form, passes
        self._by_idioms: dict[int, Program] = {}
        self._chosen: dict[tuple[object, ...], Program] = {}

    @property
    def made(self) -> Sequence[Program]:
        """The programs that have been made, each once."""
        return tuple(dict.fromkeys(self._by_idioms.values()))

    def with_idioms(self, most: int) -> Program:
        """The program with the first `most` groups of idioms recognized."""
        if most not in self._by_idioms:
            graph = build_graph(self._form)
            log = [firing for step in self._passes(most) for firing in step.rewrite(graph.module)]
            program = read_program(graph.module, graph.leaves, graph.extents, log)
            # Where none was found, fewer idioms make no other program.
            for fewer in range(most + 1 if not program.recognized else 1):
                self._by_idioms.setdefault(most - fewer, program)
        return self._by_idioms[most]

    def choose(
        self, structure: Structure, order: Sequence[Occurrence], policy: Policy, compiler: DeviceCompiler | None
    ) -> Program:
        """The program for a structure of this form; `compiler` None: nobody estimates what programs cost."""
        most = ALL_IDIOMS if policy.rewrites_arithmetic else 0
        program = self.with_idioms(most)
        if not program.recognized:
            return program
        extents = extents_of(program, order)
        while not meets(program, extents):  # the program without idioms has no guards
            most -= 1
            program = self.with_idioms(most)
        # A fixed order of sums may not depend on what a model expects of this machine.
        if compiler is None or policy.fixed_order or program is self._by_idioms.get(0):
            return program
        if all(_has_much_to_do(item, extents) for item in program.items):
            return program
        key = (most, policy, worker_count(), *[size_class(extent) for extent in extents.values()])
        if key not in self._chosen:
            self._chosen[key] = cheaper(program, self.with_idioms(0), structure, compiler)
        return self._chosen[key]


def meets(program: Program, extents: Mapping[str, int]) -> bool:
    """Whether these extents are as the program's rewrites need them."""
    return all(
        math.prod([extents[name] for name in left]) == math.prod([extents[name] for name in right])
        for left, right in program.guards
    )


def _has_much_to_do(item: Item, extents: Mapping[str, int]) -> bool:
    """Whether an item stands for no algebra, or for such of so many scores that nobody wants them in memory."""
    between = family_of_region(item.family).between if isinstance(item, KernelItem) else None
    if between is None or not isinstance(item, KernelItem):
        return True
    return between([extents[name] for name in item.domain]) >= MANY_SCORES


def cheaper(program: Program, plain: Program, structure: Structure, compiler: DeviceCompiler) -> Program:
    """`program`, but where the model promises much of `plain`: it errs, and idioms also save memory."""
    seconds, rival = (predicted_seconds(each, structure, compiler) for each in (program, plain))
    return plain if rival * MUCH < seconds else program


def predicted_seconds(program: Program, structure: Structure, compiler: DeviceCompiler) -> float:
    """What the cost model expects of all launches of a program."""
    return sum(compiler.estimate(launch).seconds for launch in launches_of(program, structure, compiler))

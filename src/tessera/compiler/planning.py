"""From the structure that is asked for to the one that is planned, and to its program under one list of passes."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.compiler.device import compilers
from tessera.compiler.graph.program import Program
from tessera.compiler.graph.programs import Programs, predicted_seconds
from tessera.lazy.devices import CPU
from tessera.lazy.policy import current_policy
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.rewrite.passes import graph_passes
from tessera.runtime.libraries import fourier
from tessera.scheduling.families.convolution.spectral_rewrite import Rewritten, with_spectra
from tessera.scheduling.model.machine import Machine
from tessera.system import forks

lock = forks.recursive_lock()
"""Held while programs are made and plans bound."""


def program_of(structure: Structure, order: Sequence[Occurrence] | None = None) -> Program:
    """The program that a structure runs under the numerics policy in force: built, rewritten and fused once for all
    structures of its form. `order` is `structure.post_order()`, where the caller has it.
    """
    order = order or structure.post_order()
    form = symbolic_form(structure, order)
    if form.program is None:
        form.program = Programs(form, lambda most: graph_passes(idioms=most))
    programs = form.program
    assert isinstance(programs, Programs)
    compiler = compilers.kernel_compiler() if structure.device in (None, CPU) else None
    return programs.choose(structure, order, current_policy(), compiler)


def as_planned(structure: Structure) -> Rewritten:
    """The structure that is planned in place of one, of the same leaves, and the rewrites between the two."""
    return with_spectra(structure, _Planning())


class _Planning:
    """What decides whether a convolution is to be a spectral one."""

    @property
    def has_native_transforms(self) -> bool:
        return fourier.find() is not None

    def machine(self, workers: int) -> Machine:
        model = compilers.kernel_compiler().model
        assert model is not None, "kernels of CPUs have a cost model"
        return model.machine(workers)

    def direct_seconds(self, structure: Structure) -> float:
        return predicted_seconds(program_of(structure), structure, compilers.kernel_compiler())

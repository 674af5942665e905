"""What users see of the compiler: the text of each level, the schedules chosen, and what was compiled and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp

from tessera.compiler import pipeline, planning
from tessera.compiler.bind.binding import steps_of
from tessera.compiler.bind.constants import packed_note
from tessera.compiler.bind.launches import AnyLaunch, Choice, LibraryLaunch, kernel_launches
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.cpu_planner import KERNELS
from tessera.compiler.device.gpu_planner import LOWERED
from tessera.compiler.explain.fusion_report import fusion_text
from tessera.compiler.graph.building import build_graph
from tessera.compiler.graph.program import KernelItem
from tessera.compiler.graph.programs import Programs
from tessera.errors import ArgumentError
from tessera.ir.parsing import print_module
from tessera.lazy.structures.structure import Structure
from tessera.lazy.structures.symbolic import SymbolicForm, symbolic_form
from tessera.rewrite.engine import Firing
from tessera.scheduling.families.registry import kernel_family
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.schedule_writer import kernel_of, unwritable

LEVELS = ("graph", "rewrites", "fusion", "schedule", "tile", "target")


def inspect_structure(structure: Structure, level: str) -> str:
    """The text of a level for a structure, which is planned if it was not.

    Raises ArgumentError for an unknown level.
    """
    if level not in LEVELS:
        raise ArgumentError(f"no level is called {level!r}", hints=[f"one of {', '.join(LEVELS)}"])
    return _TEXT[level](structure)


def choices_of(structure: Structure) -> list[Choice]:
    """The kernels that the plan of a structure launches, in order: what each computes, under which schedule."""
    pipeline.usual_plan(structure)
    return pipeline.launched(structure)


def schedules_of(structure: Structure) -> list[Schedule]:
    """The schedules of those kernels."""
    return [choice.schedule for choice in choices_of(structure)]


class CompiledKernel(NamedTuple):
    """What was compiled of one kernel under one schedule; `code` is one object for all that share it."""

    subject: Subject
    schedule: Schedule
    code: object


def compilations_of(forms: Mapping[SymbolicForm, str]) -> list[tuple[str, str, str, str]]:
    """(kernel, reason, schedule, arguments) of every kernel compiled for some forms, whose reasons are given.

    Code that several kernels share stands under the first of them.
    """
    rows: list[tuple[str, str, str, str]] = []
    listed: set[object] = set()
    for form, reason in forms.items():
        for kernels in _kernels_by_item(form):
            for place, kernel in enumerate(kernels):
                if kernel.code not in listed:
                    arguments = ", ".join(str(argument.type) for argument in kernel.subject.pattern.arguments)
                    why = _why(kernel, kernels[:place], reason)
                    rows.append((kernel.subject.item.name, why, str(kernel.schedule), arguments))
                    listed.add(kernel.code)
    return rows


def missing_kernels(structures: Iterable[Structure]) -> set[tuple[Subject, Schedule]]:
    """The kernels that evaluating these structures would compile, each alone. Compiles none."""
    wanted: set[tuple[Subject, Schedule]] = set()
    for asked in structures:
        structure = planning.as_planned(asked).structure
        compiler = compilers.compiler_of(structure.device)
        steps = steps_of(planning.program_of(structure), structure, compiler)
        wanted.update((launch.subject, launch.schedule) for launch in kernel_launches(steps))
    return {key for key in wanted if key not in _compiled_of(key[0].item)}


def _kernels_by_item(form: SymbolicForm) -> list[list[CompiledKernel]]:
    programs = form.program.made if isinstance(form.program, Programs) else ()
    return [
        list(_compiled_of(item).values())
        for program in programs
        for item in program.items
        if isinstance(item, KernelItem)
    ]


def _compiled_of(item: KernelItem) -> dict[tuple[Subject, Schedule], CompiledKernel]:
    """What was compiled of a kernel, on all devices, but for builds that time their tiles."""
    made = {key: CompiledKernel(*key, kernel.code) for key, kernel in item.memo.of(KERNELS).items()}
    for (subject, schedule, timed), lowered in item.memo.of(LOWERED).items():
        if lowered.kernels and not timed:
            made[subject, schedule] = CompiledKernel(subject, schedule, lowered)
    return made


def _why(kernel: CompiledKernel, earlier: list[CompiledKernel], reason: str) -> str:
    if not earlier:
        return reason
    if all(other.subject.pattern != kernel.subject.pattern for other in earlier):
        return "another memory layout"
    return "another schedule"


def _graph_text(structure: Structure) -> str:
    return print_module(build_graph(symbolic_form(structure)).module)


def _schedule_text(asked: Structure) -> str:
    """The kernels of a plan as lowerings take them, below what the cost model expects of each."""
    structure = planning.as_planned(asked).structure
    compiler = compilers.compiler_of(structure.device)
    steps = steps_of(planning.program_of(structure), structure, compiler)
    launches = {(launch.subject, launch.schedule): launch for launch in kernel_launches(steps)}
    kernels, left_out = [], []
    for (_, schedule), launch in launches.items():
        spec = launch.subject.spec
        field = unwritable(spec)
        if field is None:
            kernels.append(kernel_of(spec, kernel_family(spec).name, schedule, launch.call.shaped.extents))
        else:
            left_out.append(f'// {spec.name}: {field} has no form in Schedule IR; level "tile" shows the kernel')
    expected = [_expected(step, compiler) for step in steps]
    return "\n".join([*expected, *left_out, print_module(ModuleOp(kernels))])


def _expected(step: AnyLaunch, compiler: DeviceCompiler) -> str:
    """A comment on a step: of a kernel on a CPU what the cost model expects, and the resource that binds it."""
    if isinstance(step, LibraryLaunch):
        return f"// {step.operator.name}: a call of a library"
    name = step.call.item.name
    if compiler.model is None:
        return f"// {name}: for {compiler.target.name}"
    estimate = compiler.estimate(step)
    workers = "1 worker" if step.choice.workers == 1 else f"{step.choice.workers} workers"
    return (
        f"// {name}: {estimate.seconds * 1e6:.1f} us predicted with {workers}, "
        f"bound by {estimate.binding} (ceilings: {estimate.source}){packed_note(step.call)}"
    )


def rewrites_of(structure: Structure) -> list[Firing]:
    """The rules that fired between a structure and its kernels, in order."""
    planned = planning.as_planned(structure)
    return [*planned.log, *planning.program_of(planned.structure).log]


def _rewrites_text(structure: Structure) -> str:
    return "\n".join(map(str, rewrites_of(structure)))


def _tile_text(structure: Structure) -> str:
    compiler = compilers.compiler_of(structure.device)
    return "\n".join(print_module(compiler.tile_ir(c.subject, c.schedule)) for c in choices_of(structure))


def _target_text(structure: Structure) -> str:
    compiler = compilers.compiler_of(structure.device)
    texts = [
        compiler.planner.backend_of(choice.schedule).emit(
            compiler.tile_ir(choice.subject, choice.schedule), compiler.target, "source"
        )
        for choice in choices_of(structure)
    ]
    return "\n".join(str(text) for text in texts)


_TEXT: dict[str, Callable[[Structure], str]] = {
    "graph": _graph_text,
    "rewrites": _rewrites_text,
    "fusion": fusion_text,
    "schedule": _schedule_text,
    "tile": _tile_text,
    "target": _target_text,
}

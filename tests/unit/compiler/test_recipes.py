"""Recipes: known code is found on disk without Tile IR, and only where everything it was made from is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import op, target
from tessera.backend.llvm import LLVMBackend
from tessera.backend.llvm.machine_code.objects import ObjectCache
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.device import recipes
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.cpu_planner import Code
from tessera.compiler.graph.building import build_graph
from tessera.compiler.graph.program import Program, read_program
from tessera.handle import Tensor
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.rewrite.passes import graph_passes
from tessera.scheduling.language.schedule import Schedule

Expression = Callable[[], Tensor]


def softmax() -> Tensor:
    return op.softmax(op.tensor(torch.ones(6, 40)))


def product() -> Tensor:
    return op.relu(op.matmul(op.tensor(torch.ones(6, 40)), op.tensor(torch.ones(40, 9))))


class SpiedCompiler(DeviceCompiler):
    """A compiler whose code lies in a folder of the test's, and that counts the Tile IR it builds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(target.detect(), LLVMBackend(ObjectCache(folder)))
        self.built = 0

    def tile_ir(self, subject: Subject, schedule: Schedule, timed: bool = False) -> ModuleOp:
        self.built += 1
        return super().tile_ir(subject, schedule, timed)


def fresh_program(tensor: Tensor) -> Program:
    """The program of an expression, with nothing compiled yet, as another process would make it."""
    graph = build_graph(symbolic_form(tensor.structure))
    for step in graph_passes():
        step.rewrite(graph.module)
    return read_program(graph.module, graph.leaves, graph.extents)


def codes(expression: Expression, compiler: DeviceCompiler) -> list[Code]:
    tensor = expression()
    found = launches_of(fresh_program(tensor), tensor.structure, compiler)
    return [compiler.planner.kernel(launch.choice).code for launch in found]


@pytest.mark.parametrize("expression", [softmax, product])
def test_a_hit_on_disk_builds_no_tile_ir(expression: Expression, tmp_path: Path) -> None:
    first, second = SpiedCompiler(tmp_path), SpiedCompiler(tmp_path)
    (made,), (found,) = codes(expression, first), codes(expression, second)
    assert (first.built, second.built) == (1, 0)
    assert found.loaded.kernel == made.loaded.kernel
    assert found.workspace_bytes == made.workspace_bytes


def test_code_is_loaded_once_for_equal_kernels(tmp_path: Path) -> None:
    compiler = SpiedCompiler(tmp_path)
    (first,), (second,) = codes(softmax, compiler), codes(softmax, compiler)
    assert first is second
    assert compiler.built == 1


def test_two_layers_of_one_program_share_their_code(tmp_path: Path) -> None:
    def layers() -> Tensor:
        weight = op.tensor(torch.ones(40, 40))
        return op.relu(op.matmul(op.relu(op.matmul(op.tensor(torch.ones(6, 40)), weight)), weight))

    compiler = SpiedCompiler(tmp_path)
    first, second = codes(layers, compiler)
    assert first is second
    assert compiler.built == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: data[:60] + b"?" + data[61:], lambda _: b""])
def test_damaged_objects_are_compiled_again(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (made,) = codes(softmax, SpiedCompiler(tmp_path))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    again = SpiedCompiler(tmp_path)
    (repaired,) = codes(softmax, again)
    assert again.built == 1
    assert repaired.loaded.kernel == made.loaded.kernel
    assert path.read_bytes() == whole


def subject_of(expression: Expression, tmp_path: Path) -> tuple[Subject, Schedule]:
    tensor = expression()
    (launch,) = launches_of(fresh_program(tensor), tensor.structure, SpiedCompiler(tmp_path))
    return launch.subject, launch.schedule


def test_every_component_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, schedule = subject_of(product, tmp_path)
    machine = target.detect()
    spec = subject.spec
    strided = replace(spec.arguments[0], strides=(None,) * len(spec.arguments[0].strides))
    seen = [
        recipes.recipe(spec, schedule, machine, "20.1.8"),
        recipes.recipe(spec, schedule.replace(unroll=schedule.integer("unroll") + 1), machine, "20.1.8"),
        recipes.recipe(spec, schedule, replace(machine, arch=machine.arch + "x"), "20.1.8"),
        recipes.recipe(spec, schedule, replace(machine, features=machine.features | {"new"}), "20.1.8"),
        recipes.recipe(spec, schedule, machine, "20.1.9"),
        recipes.recipe(replace(spec, arguments=(strided, *spec.arguments[1:])), schedule, machine, "20.1.8"),
        recipes.recipe(subject_of(softmax, tmp_path)[0].spec, schedule, machine, "20.1.8"),
    ]
    monkeypatch.setattr(recipes, "generator_revision", lambda: "another")
    seen.append(recipes.recipe(spec, schedule, machine, "20.1.8"))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (op.exp, op.log),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x - op.exp(x), lambda x: op.exp(x) - x),
        (lambda x: op.sum(x, axis=-1), lambda x: op.sum(x, axis=0)),
    ],
)
def test_another_algebra_is_another_recipe(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    x = op.tensor(torch.ones(6, 40))
    subject, schedule = subject_of(lambda: one(x), tmp_path)
    second, _ = subject_of(lambda: other(x), tmp_path)
    machine = target.detect()
    assert recipes.recipe(subject.spec, schedule, machine, "1") != recipes.recipe(second.spec, schedule, machine, "1")


def test_names_do_not_count(tmp_path: Path) -> None:
    subject, schedule = subject_of(product, tmp_path)
    renamed = replace(subject.spec, name="another_7")
    machine = target.detect()
    assert recipes.recipe(renamed, schedule, machine, "1") == recipes.recipe(subject.spec, schedule, machine, "1")

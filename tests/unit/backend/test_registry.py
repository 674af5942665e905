"""Backends are the folders of `tessera.backend`: one more is found, and runs kernels, without another file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tessera.backend
from tessera import op, target
from tessera.backend import registry
from tessera.backend.contract import CpuBackend, KernelObject
from tessera.backend.registry import backend_of, backends, cpu_backend, gpu_backend
from tessera.compiler.bind.binding import bind
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.planning import program_of
from tessera.errors import CompileError, DeviceError
from tessera.handle import Tensor
from tessera.ir.parsing import parse, print_module
from tessera.runtime.plans.calling import call

DOUBLE = """
"tessera.tile.kernel"() ({
^bb0(%x: memref<?xf32, strided<[1]>>, %factor: f32, %y: memref<?xf32, strided<[1]>>):
  %zero = arith.constant 0 : index
  %count = "memref.dim"(%x, %zero) : (memref<?xf32, strided<[1]>>, index) -> index
  "tessera.tile.parallel"(%count) ({
  ^bb1(%lower: index, %upper: index):
    "tessera.tile.for"(%lower, %upper) ({
    ^bb2(%at: index):
      %a = "tessera.tile.load"(%x, %at) {dims = array<i64: 0>, in_bounds = array<i1: 0>, fill = 0.0 : f32}
        : (memref<?xf32, strided<[1]>>, index) -> vector<8xf32>
      %f = "tessera.tile.broadcast"(%factor) : (f32) -> vector<8xf32>
      %b = arith.mulf %a, %f : vector<8xf32>
      "tessera.tile.store"(%b, %y, %at) {dims = array<i64: 0>, in_bounds = array<i1: 0>}
        : (vector<8xf32>, memref<?xf32, strided<[1]>>, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }) {step = 8 : i64} : (index, index) -> ()
  }) {steps = array<i64: 8>, split = 0 : i64} : (index) -> ()
}) {sym_name = "scaled", outputs = array<i64: 2>} : () -> ()
"""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuBackend]:
    """The backend of the folder `toys`, as if it stood beside the others."""
    path = [*tessera.backend.__path__, str(Path(__file__).parent / "toys")]
    monkeypatch.setattr(tessera.backend, "__path__", path)
    found: CpuBackend = backend_of("toy")
    yield found
    registry._found.pop(("toy", ""))


def test_every_folder_has_a_backend() -> None:
    assert [each.device for each in backends()] == ["cuda", "interpreter", "cpu", "cuda"]
    assert backend_of("cuda:1") is gpu_backend() is gpu_backend("cuda:0")
    assert cpu_backend() is backend_of("cpu")


def test_a_device_of_several_backends_has_a_default_one_and_others_by_name() -> None:
    assert registry.backend_names("cuda:0") == ["triton", "cuda_tile"]
    assert gpu_backend() is gpu_backend(name="triton")
    assert gpu_backend(name="cuda_tile") is not gpu_backend()
    with pytest.raises(DeviceError, match="cuda has no backend 'none'"):
        gpu_backend(name="none")


def test_a_device_without_a_backend_is_refused() -> None:
    with pytest.raises(DeviceError, match="no backend makes kernels for abacus:0"):
        backend_of("abacus:0")


def test_a_backend_is_one_folder(toy: CpuBackend) -> None:
    assert "toy" in [each.device for each in backends()]
    module = parse(DOUBLE)
    kernel = toy.compile(module, target.detect())
    x, y = torch.arange(13.0), torch.empty(13)
    call(toy.load(KernelObject.from_bytes(kernel.to_bytes())), [x, 2.5, y])
    assert torch.equal(y, 2.5 * x)
    assert toy.emit(module, target.detect(), "source") == print_module(module)
    with pytest.raises(CompileError, match="no assembly"):
        toy.emit(module, target.detect(), "asm")


def product() -> Tensor:
    return op.relu(op.matmul(torch.randn(9, 20), torch.randn(20, 17)) + torch.randn(17))


def rows() -> Tensor:
    return op.softmax(torch.randn(7, 33))


@pytest.mark.parametrize("expression", [product, rows])
def test_programs_run_on_it_as_on_any_other(toy: CpuBackend, expression: object) -> None:
    assert callable(expression)
    result = expression()
    structure, leaves = result.state
    compiler = DeviceCompiler(target.detect(), toy)
    plan, _ = bind(program_of(structure), structure.post_order(), compiler)
    (found,) = plan.run(leaves)
    torch.testing.assert_close(Tensor((found.structure, (found,))).torch(), result.torch())

"""Parameters of kernels: each where and as large as the machine code wants it, and arguments that are refused."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from tessera import target
from tessera.backend.contract import GpuKernelObject, GpuParameter, LaunchFacts, TensorMapFacts
from tessera.backend.triton import TritonBackend
from tessera.dtypes import bf16, fp32
from tessera.errors import ArgumentError
from tessera.ir.parsing import parse
from tessera.runtime.cuda.parameters import ParameterLayout, bf16_bits
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu, map_reduce_gpu_schedule
from tessera.scheduling.language.schedule import Schedule
from tests.unit.backend.triton import cubin
from tests.unit.runtime.cuda.fake import kernel
from tests.unit.runtime.cuda.offline_kernels import compile_source
from tests.unit.scheduling import specs

pytest.importorskip("triton", reason="the extra `triton` is not installed")

SOFTMAX = specs.rows("softmax", fp32)
H100 = target.gpu("h100")
VECTOR = "memref<?xf32, strided<[1]>>"
SCALARS = f"""
"tessera.tile.kernel"() ({{
^bb0(%X: {VECTOR}, %half: bf16, %wide: f64, %Y: {VECTOR}):
  %c0 = arith.constant 0 : index
  %n = memref.dim %X, %c0 : {VECTOR}
  "tessera.tile.parallel"(%n) ({{
  ^box(%lo: index, %hi: index):
    %x = "tessera.tile.load"(%X, %lo) {{dims = array<i64: 0>, in_bounds = array<i1: false>}}
      : ({VECTOR}, index) -> vector<16xf32>
    %h = "tessera.tile.broadcast"(%half) : (bf16) -> vector<16xbf16>
    %w = "tessera.tile.broadcast"(%wide) : (f64) -> vector<16xf64>
    %h32 = "tessera.tile.cast"(%h) : (vector<16xbf16>) -> vector<16xf32>
    %w32 = "tessera.tile.cast"(%w) : (vector<16xf64>) -> vector<16xf32>
    %a = arith.mulf %x, %h32 : vector<16xf32>
    %b = arith.addf %a, %w32 : vector<16xf32>
    "tessera.tile.store"(%b, %Y, %lo) {{dims = array<i64: 0>, in_bounds = array<i1: false>}}
      : (vector<16xf32>, {VECTOR}, index) -> ()
    "tessera.tile.yield"() : () -> ()
  }}) {{steps = array<i64: 16>, split = 0}} : (index) -> ()
}}) {{sym_name = "scalars", outputs = array<i64: 3>}} : () -> ()
"""


def product() -> GpuKernelObject:
    module = lower_contraction_gpu(specs.matmul(bf16), Schedule(tile=(64, 64, 32), pipeline_depth=2, warps=4))
    return TritonBackend().compile(module, H100)


def rows() -> GpuKernelObject:
    module = lower_map_reduce_gpu(SOFTMAX, map_reduce_gpu_schedule(SOFTMAX, 1000))
    return TritonBackend().compile(module, H100)


@pytest.mark.parametrize("make", [product, rows, lambda: TritonBackend().compile(parse(SCALARS), H100)])
def test_the_packed_values_have_the_offsets_and_sizes_that_the_cubin_declares(make: object) -> None:
    assert callable(make)
    compiled: GpuKernelObject = make()
    layout = ParameterLayout(compiled)
    wanted = cubin.read(compiled.image).parameters(compiled.entry)
    assert [(field.offset, field.size) for field in layout.fields] == wanted.places
    assert layout.nbytes == wanted.nbytes


@pytest.mark.parametrize(("gpu", "maps"), [("sm90", True), ("sm80", False)])
def test_a_tensor_descriptor_takes_the_parameters_that_the_cubin_declares(gpu: str, maps: bool) -> None:
    compiled = compile_source("host_descriptor", target.gpu(gpu))
    layout = ParameterLayout(compiled)
    assert bool(layout.maps) == maps
    wanted = cubin.read(compiled.image).parameters(compiled.entry)
    # A tensor map lies at a multiple of 64 of the constant bank, not of the parameters: only sizes are told by both.
    assert [field.size for field in layout.fields] == [size for _, size in wanted.places]
    if not maps:
        assert [(field.offset, field.size) for field in layout.fields] == wanted.places


def test_a_device_descriptor_takes_scratch_memory() -> None:
    compiled = compile_source("device_descriptor", H100)
    assert (compiled.scratch_bytes, compiled.scratch_alignment) == (128, 128)
    assert not compiled.launch.tensor_maps


def test_tensor_maps_are_described_as_triton_does() -> None:
    compiled = compile_source("host_descriptor", H100)
    bfloat16, swizzle_128_bytes = 9, 3
    assert compiled.launch.tensor_maps == (TensorMapFacts(swizzle_128_bytes, 2, bfloat16, (64, 64)),)


EVERY = (
    GpuParameter("p", "*bf16", 0),
    GpuParameter("flag", "i1", 1),
    GpuParameter("small", "i8", 2),
    GpuParameter("size", "i32", 0, "size"),
    GpuParameter("stride", "i64", 0, "stride"),
    GpuParameter("half", "fp16", 3),
    GpuParameter("brain", "bf16", 4),
    GpuParameter("single", "fp32", 5),
    GpuParameter("double", "fp64", 6),
)
VALUES = (0x7F00_0000_1000, True, -3, 2**31 - 1, -5, 1.5, 3.140625, 0.1, 0.1)


def test_every_type_is_written_at_its_alignment() -> None:
    layout = ParameterLayout(kernel(*EVERY))
    memory = bytearray(b"\xff" * (layout.nbytes + 8))
    layout.pack(memory, 8, VALUES, scratch=0xABC0)
    found = [
        struct.unpack_from(f"<{form}", memory, 8 + field.offset)[0]
        for form, field in zip("Q?biqeHfdQQ", layout.fields, strict=True)
    ]
    single = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert found == [*VALUES[:6], 0x4049, single, 0.1, 0xABC0, 0]
    assert all(field.offset % field.size == 0 for field in layout.fields)
    assert memory[:8] == b"\xff" * 8


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, 1.00390625, 1.01171875, 3.3e38, 3.4e38, 1e39, -1e39, 1e-40, math.inf, -math.inf, math.nan]
)
def test_bf16_is_rounded_as_torch_rounds(value: float) -> None:
    expected = torch.tensor(value, dtype=torch.float64).to(torch.float32).to(torch.bfloat16)
    bits = torch.tensor(bf16_bits(value), dtype=torch.uint16).view(torch.bfloat16)
    assert torch.equal(bits, expected) or (bool(bits.isnan()) and math.isnan(value))


@pytest.mark.parametrize(
    ("number", "value", "text"),
    [
        (3, 2**31, "size is 2147483648, which no i32 holds"),
        (2, 200, "small is 200, which no i8 holds"),
        (0, -1, "p is -1"),
        (5, 1e6, "half is 1000000.0, which no fp16 holds"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(number: int, value: float, text: str) -> None:
    arguments = [*VALUES[:number], value, *VALUES[number + 1 :]]
    with pytest.raises(ArgumentError, match=text):
        ParameterLayout(kernel(*EVERY)).pack(bytearray(200), 0, arguments)


@pytest.mark.parametrize("arguments", [VALUES[:-1], (*VALUES, 0), ()])
def test_the_number_of_arguments_is_checked(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match=f"takes 9 numbers, not {len(arguments)}"):
        ParameterLayout(kernel(*EVERY)).pack(bytearray(200), 0, arguments)


@pytest.mark.parametrize("name", ["p", "n", "s"])
def test_a_promise_of_divisibility_that_is_not_kept_is_refused(name: str) -> None:
    parameters = [
        GpuParameter("p", "*fp32", 0, divisor=16),
        GpuParameter("free", "i32", 0, "size"),
        GpuParameter("n", "i32", 0, "size", 1, divisor=16),
        GpuParameter("s", "i64", 0, "stride", divisor=16),
    ]
    layout, kept = ParameterLayout(kernel(*parameters)), {"p": 4096, "free": 3, "n": 32, "s": -16}
    layout.pack(bytearray(64), 0, list(kept.values()))
    broken = {**kept, name: kept[name] + 8}
    with pytest.raises(ArgumentError, match=f"{name} is {broken[name]}, and the kernel was compiled for multiples"):
        layout.pack(bytearray(64), 0, list(broken.values()))


def test_a_parameter_of_unknown_type_is_refused() -> None:
    with pytest.raises(ArgumentError, match="type fp4 cannot be passed"):
        ParameterLayout(kernel(GpuParameter("x", "fp4", 0)))


def test_a_descriptor_without_tensor_maps_is_taken_apart_as_triton_does() -> None:
    layout = ParameterLayout(kernel(GpuParameter("d", "tensordesc<fp32[8, 4]>", 0), launch=LaunchFacts()))
    memory = bytearray(layout.nbytes)
    layout.pack(memory, 0, (4096, 10, 20, 32, 1))
    found = [
        struct.unpack_from(f"<{form}", memory, field.offset)[0]
        for form, field in zip("Qqqqq?iiqqQQ", layout.fields, strict=True)
    ]
    assert found == [4096, 10, 20, 32, 1, False, 10, 20, 32, 1, 0, 0]
    with pytest.raises(ArgumentError, match="takes 5 numbers, not 4"):
        layout.pack(memory, 0, (4096, 10, 20, 32))

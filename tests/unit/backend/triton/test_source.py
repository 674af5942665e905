"""Tile IR in the shape of GPUs as Triton source: goldens, and what the text must hold whatever the kernel."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp, UnitAttr

from tessera import target
from tessera.backend.triton import TritonBackend
from tessera.backend.triton.printing import tile_clock
from tessera.dtypes import DType, bf16, bool_, fp8_e4m3, fp8_e5m2, fp16, fp32, fp64, int32, int64
from tessera.errors import CompileError
from tessera.ir.parsing import parse, print_module
from tessera.ir.tile.operations import find_kernel
from tessera.scheduling.families.attention.gpu import space as gpu_attention_space
from tessera.scheduling.families.attention.gpu.lowering import lower_attention_gpu
from tessera.scheduling.families.attention.space import attention_problem
from tessera.scheduling.families.product.gpu import space as gpu_space
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.product.gpu.problem import contraction_gpu_problem
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu, map_reduce_gpu_schedule
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import AttentionSpec, ContractionSpec, MapReduceSpec
from tests.unit.scheduling import specs

H100 = target.gpu("h100")


def source(module: ModuleOp) -> str:
    """The printed kernel, which must at least be Python."""
    text = TritonBackend().emit(module, H100, "source")
    assert isinstance(text, str)
    compile(ast.parse(text), "<kernel>", "exec")
    return text


def product(spec: ContractionSpec) -> ModuleOp:
    extents = {**dict.fromkeys(spec.batch, 16), "m": 4096, "n": 4096, "k": 4096}
    problem = contraction_gpu_problem(spec, extents, H100)
    return lower_contraction_gpu(spec, gpu_space.default_schedule(problem))


def rows(spec: MapReduceSpec, columns: int) -> ModuleOp:
    return lower_map_reduce_gpu(spec, map_reduce_gpu_schedule(spec, columns))


def attention(spec: AttentionSpec, head: int) -> ModuleOp:
    extents = {**dict.fromkeys(spec.batch, 64), "q": 4096, "k": 4096, "d": head, "v": head}
    problem = attention_problem(spec, H100, extents)
    return lower_attention_gpu(spec, gpu_attention_space.default_schedule(problem), problem.target)


KERNELS: dict[str, Callable[[], ModuleOp]] = {
    "matmul_bias_gelu_fp32": lambda: product(specs.matmul(fp32, bias=True, activation="gelu")),
    "matmul_bias_gelu_bf16": lambda: product(specs.matmul(bf16, bias=True, activation="gelu")),
    "flash_attention_bf16": lambda: attention(specs.attention(bf16), 64),
    "flash_attention_causal_mask_fp16": lambda: attention(specs.attention(fp16, causal=True, mask=fp16), 80),
    "matmul_tf32": lambda: product(replace(specs.matmul(fp32), math="tf32", name="matmul_tf32")),
    "matmul_fp8_e4m3": lambda: product(specs.matmul(fp8_e4m3, b_axes="nk")),
    "matmul_fp8_e4m3_bf16": lambda: product(specs.mixed_matmul(fp8_e4m3, bf16)),
    "softmax_fp32": lambda: rows(specs.rows("softmax", fp32), 1000),
    "softmax_bf16": lambda: rows(specs.rows("softmax", bf16), 1000),
    "softmax_long_rows_fp32": lambda: rows(specs.rows("softmax", fp32), 1_000_000),
}


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(source(KERNELS[name]()), f"{name}.py.txt")


def test_the_same_tile_ir_read_back_from_text_prints_the_same_source() -> None:
    module = KERNELS["softmax_fp32"]()
    again = parse(print_module(module))
    # Names of values are for readers; they survive the text.
    assert source(again) == source(module)


def parameters(text: str, kernel: str) -> list[str]:
    (function,) = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == kernel]
    return [argument.arg for argument in function.args.args]


def test_what_a_buffer_promises_is_no_parameter() -> None:
    text = source(product(specs.matmul(fp32, a_axes="km")))
    listed = parameters(text, "matmul_fp32")
    assert listed[:4] == ["a_ptr", "a_size_0", "a_size_1", "a_stride_0"]
    assert not any(name.endswith("_stride_1") for name in listed)


def test_offsets_are_64_bits_wide() -> None:
    text = source(product(specs.matmul(fp32)))
    assert "a_stride_0: tl.int64" in text
    assert "tl.program_id(0).to(tl.int64)" in text


@pytest.mark.parametrize(
    ("dtype", "dot"),
    [
        (fp32, 'tl.dot(a_tile, b_tile, acc, input_precision="ieee")'),
        (bf16, "tl.dot(a_tile, b_tile, acc)"),
        (fp16, "tl.dot(a_tile, b_tile, acc)"),
        (fp8_e4m3, "tl.dot(a_tile, b_tile, acc, max_num_imprecise_acc=128)"),
        (fp8_e5m2, "tl.dot(a_tile, b_tile, acc, max_num_imprecise_acc=128)"),
        (fp64, 'tl.dot(a_tile, b_tile, acc, input_precision="ieee", out_dtype=tl.float64)'),
    ],
)
def test_products_are_as_exact_as_their_operands(dtype: DType, dot: str) -> None:
    assert dot in source(product(specs.matmul(dtype)))


def test_tf32_is_a_math_mode_of_fp32() -> None:
    assert 'input_precision="tf32")' in source(product(replace(specs.matmul(fp32), math="tf32")))
    assert "tf32" not in source(product(replace(specs.matmul(fp64), math="tf32")))


def test_a_prologue_is_masked_beyond_k() -> None:
    text = source(product(specs.matmul(fp32, prologue="exp")))
    assert "v = tl.broadcast_to(k_lanes[None, :] < a_size_1, (128, 64))" in text
    assert "tl.dot(tl.where(v, tl.exp(a_tile), 0.0), b_tile, acc" in text


def test_schedule_hints_become_launch_options() -> None:
    text = source(lower_contraction_gpu(specs.matmul(bf16), Schedule(tile=(64, 64, 32), warps=4, pipeline_depth=5)))
    assert "num_warps=4" in text
    assert "num_stages=5" in text
    assert "grid = (triton.cdiv(a.shape[0], 64) * triton.cdiv(b.shape[1], 64),)" in text


def test_reductions_propagate_nan() -> None:
    text = source(rows(specs.reduction("max", fp32, by_rows=True), 100))
    assert "tl.reduce(v, 1, maximum_or_nan, keep_dims=True)" in text
    assert "return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)" in text


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min", "prod", "argmax"])
@pytest.mark.parametrize("by_rows", [True, False])
def test_reductions_print(kind: str, by_rows: bool) -> None:
    text = source(rows(specs.reduction(kind, fp32, by_rows), 100))
    assert text.count("@triton.jit") >= 1
    assert "def launch(x0, out):" in text


def test_a_loop_over_a_programs_own_share_is_no_loop() -> None:
    text = source(rows(specs.add_scaled(fp32), 4096))
    assert "    for " not in text


def test_what_a_program_stores_is_there_when_it_loads_it() -> None:
    module = parse((Path(__file__).parents[2] / "ir" / "kernels" / "softmax.mlir").read_text())
    text = source(module)
    assert text.count("tl.store(") == text.count("tl.debug_barrier()") == 2
    assert "debug_barrier" not in source(KERNELS["softmax_fp32"]())


ELEMENTWISE = """
"tessera.tile.kernel"() ({
^bb0(%x: memref<?xTYPE, strided<[1]>>, %y: memref<?xTYPE, strided<[1]>>):
  %c0 = arith.constant 0 : index
  %n = memref.dim %x, %c0 : memref<?xTYPE, strided<[1]>>
  "tessera.tile.parallel"(%n) ({
  ^box(%lo: index, %hi: index):
    "tessera.tile.for"(%lo, %hi) ({
    ^bb1(%i: index):
      %a = "tessera.tile.load"(%x, %i) {dims = array<i64: 0>, in_bounds = array<i1: false>}
        : (memref<?xTYPE, strided<[1]>>, index) -> vector<128xTYPE>
      CONSTANT
      %b = BODY
      "tessera.tile.store"(%b, %y, %i) {dims = array<i64: 0>, in_bounds = array<i1: false>}
        : (vector<128xTYPE>, memref<?xTYPE, strided<[1]>>, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }) {step = 128} : (index, index) -> ()
  }) {steps = array<i64: 128>, split = 0} : (index) -> ()
}) {sym_name = "f", outputs = array<i64: 1>} : () -> ()
"""


def elementwise(kind: str, operation: str, constant: str = "") -> str:
    """The lines after the load `a` of a kernel that stores what `operation` gives."""
    text = ELEMENTWISE.replace("BODY", operation).replace("CONSTANT", constant).replace("TYPE", kind)
    lines = source(parse(text)).split("def launch")[0].splitlines()
    (load,) = [number for number, line in enumerate(lines) if "a = tl.load" in line]
    return " ".join(line.strip() for line in lines[load + 1 :]).replace("( ", "(")


@pytest.mark.parametrize(
    ("kind", "operation", "expected"),
    [
        ("f32", "arith.addf %a, %a : vector<128xf32>", "a + a"),
        ("f32", "arith.divf %a, %a : vector<128xf32>", "tl.div_rn(a, a)"),
        ("f64", "arith.divf %a, %a : vector<128xf64>", "a / a"),
        ("f32", "math.sqrt %a : vector<128xf32>", "tl.sqrt_rn(a)"),
        ("bf16", "math.exp %a : vector<128xbf16>", "tl.exp(a.to(tl.float32)).to(tl.bfloat16)"),
        ("f32", "arith.negf %a : vector<128xf32>", "a * -1.0"),
        ("f32", "math.tanh %a : vector<128xf32>", "libdevice.tanh(a)"),
        ("i64", "arith.maxsi %a, %a : vector<128xi64>", "tl.maximum(a, a)"),
        ("i1", "arith.maxsi %a, %a : vector<128xi1>", "a & a"),
        ("i1", "arith.addi %a, %a : vector<128xi1>", "a ^ a"),
        ("i32", "arith.shrsi %a, %a : vector<128xi32>", "a >> a"),
    ],
)
def test_arithmetic(kind: str, operation: str, expected: str) -> None:
    assert f", {expected}, mask" in elementwise(kind, operation)


@pytest.mark.parametrize(
    ("kind", "operation", "expected"),
    [
        ("f64", "arith.addf %a, %k : vector<128xf64>", "a + 0.1"),
        ("f64", "arith.maximumf %a, %k : vector<128xf64>", "tl.maximum(a, tl.full((128,), 0.1, tl.float64), "),
        ("f32", "arith.maximumf %a, %k : vector<128xf32>", "tl.maximum(a, 0.1, "),
    ],
)
def test_numbers_stand_where_triton_takes_them_as_the_tiles_type(kind: str, operation: str, expected: str) -> None:
    # Functions of Triton take a Python number as fp32, its operators as the other operand's type.
    assert expected in elementwise(kind, operation, f"%k = arith.constant dense<0.1> : vector<128x{kind}>")


def test_scalars_keep_their_type() -> None:
    assert "x2: tl.float32" in source(rows(specs.add_scaled(fp32), 100))
    assert "x2: tl.float64" in source(rows(specs.add_scaled(fp64), 100))


@pytest.mark.parametrize("dtype", [bool_, int32, int64])
def test_integers_reduce(dtype: DType) -> None:
    text = source(rows(specs.reduction("max", dtype, by_rows=True), 100))
    assert "larger, keep_dims=True)" in text


# -- what Triton cannot express ---------------------------------------------------------------------------------------


def test_tiles_are_powers_of_two() -> None:
    module = lower_map_reduce_gpu(specs.rows("softmax", fp32), Schedule(tile=(1, 96), whole_row=True, warps=1))
    with pytest.raises(CompileError, match="1x96: tiles in Triton have extents that are powers of two"):
        source(module)


def test_dots_are_large() -> None:
    module = lower_contraction_gpu(specs.matmul(fp32), Schedule(tile=(8, 32, 16), warps=1, pipeline_depth=1))
    with pytest.raises(CompileError, match=r"16 and more along each axis, not \(8, 16\) by \(16, 32\)"):
        source(module)


def test_an_operation_without_a_printer_is_named() -> None:
    with pytest.raises(CompileError, match=r"Triton has nothing for math\.atan"):
        elementwise("f32", "math.atan %a : vector<128xf32>")


def timed(module: ModuleOp) -> ModuleOp:
    find_kernel(module).attributes["timed"] = UnitAttr()
    return module


CLOCK_LINE = re.compile(r"^ *(tile_(start|end|record) = .*|tl\.store\(tile_record .*|tile_times,)\n", re.MULTILINE)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("gpu", ["h100", "gfx942"])
def test_a_timed_build_is_the_usual_one_between_two_reads_of_the_clock(name: str, gpu: str) -> None:
    usual, built = (
        TritonBackend().emit(module, target.gpu(gpu), "source") for module in (KERNELS[name](), timed(KERNELS[name]()))
    )
    assert isinstance(built, str)
    assert isinstance(usual, str)
    assert "tile_" not in usual.replace("_tile_", "")
    functions = tile_clock.functions(target.gpu(gpu))
    assert built.count(functions) == 1
    assert built.count("tile_clock()\n") == 2
    bare = CLOCK_LINE.sub("", built.replace(f"{functions}\n\n\n", ""))
    assert bare.replace(", tile_times):", "):") == usual


def test_programs_that_walk_the_grid_time_each_of_its_steps() -> None:
    schedule = Schedule(tile=(128, 128, 64), pipeline_depth=3, warps=8, grid="persistent")
    text = source(timed(lower_contraction_gpu(specs.matmul(bf16), schedule)))
    loop = text[text.index("in tl.range(tl.program_id(0)") :]
    assert "        tile_start = tile_clock()\n" in loop
    assert "        tile_record = tile_times + tl.cast(step, tl.int64) * 3\n" in loop


def test_a_kernel_is_one_grid() -> None:
    module = parse(
        '"tessera.tile.kernel"() ({\n^bb0(%x: memref<?xf32>):\n}) {sym_name = "f", outputs = array<i64>} : () -> ()'
    )
    with pytest.raises(CompileError, match=r"is one tessera\.tile\.parallel"):
        source(module)


def test_a_cpu_is_no_target() -> None:
    cpu = target.Target("cpu", "znver5", "a CPU", frozenset(), 512, 32, 2, 2, (), "x86_64")
    with pytest.raises(CompileError, match="a CPU is none"):
        TritonBackend().emit(KERNELS["softmax_fp32"](), cpu, "source")


def test_assembly_is_not_given() -> None:
    with pytest.raises(CompileError, match="source and objects, not asm"):
        TritonBackend().emit(KERNELS["softmax_fp32"](), H100, "asm")

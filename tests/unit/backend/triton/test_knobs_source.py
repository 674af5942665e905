"""Knobs of products in the printed source: one golden for each, and what the launcher must do for it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

import pytest

from tessera import target
from tessera.backend.triton import TritonBackend
from tessera.backend.triton.printing.kernel import parameters_of
from tessera.dtypes import bf16, fp32
from tessera.errors import CompileError
from tessera.ir.parsing import parse, print_module
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import ContractionSpec
from tests.unit.scheduling import specs

H100 = target.gpu("h100")
PLAIN = Schedule(tile=(128, 128, 64), warps=4, pipeline_depth=3, group=8)
COPIED: dict[str, KnobValue] = {"a_indexing": "host_descriptor", "b_indexing": "host_descriptor"}
KNOBS: Mapping[str, dict[str, KnobValue]] = {
    "persistent": {"grid": "persistent"},
    "fused_two_parts": {"grid": "fused", "epilogue_parts": 2, "accumulators": 2},
    "host_descriptors": {**COPIED, "out_indexing": "host_descriptor"},
    "device_descriptors": dict.fromkeys(("a_indexing", "b_indexing", "out_indexing"), "device_descriptor"),
    "warp_specialize": {**COPIED, "warp_specialize": True},
    "max_registers": {"max_registers": 128},
    "evictions": {"pipeline_depth": 1, "a_eviction": "first", "b_eviction": "last", "out_eviction": "first"},
}


def source(spec: ContractionSpec, **knobs: KnobValue) -> str:
    """The printed kernel, which must be Python, and the same from the Tile IR's text."""
    module = lower_contraction_gpu(spec, PLAIN.replace(**knobs))
    texts = [TritonBackend().emit(each, H100, "source") for each in (module, parse(print_module(module)))]
    assert texts[0] == texts[1]
    assert isinstance(texts[0], str)
    ast.parse(texts[0])
    return texts[0]


@pytest.mark.parametrize("name", KNOBS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(source(specs.matmul(bf16), **KNOBS[name]), f"knob_{name}.py.txt")


def test_every_column_is_stored_once_whatever_the_parts() -> None:
    for parts in (1, 2, 4):
        text = source(specs.matmul(bf16), epilogue_parts=parts)
        assert text.count("tl.store(") == parts
        assert text.count("tl.split(") == parts - 1


def test_programs_that_walk_are_as_many_as_multiprocessors() -> None:
    assert "grid = (min(triton.cdiv(a.shape[0], 128) * triton.cdiv(b.shape[1], 128), 132),)" in source(
        specs.matmul(bf16), grid="persistent"
    )


def test_batches_and_transposed_operands_go_through_descriptors() -> None:
    spec = specs.matmul(bf16, a_axes="km", batch=("b0",))
    text = source(spec, **COPIED, out_indexing="device_descriptor")
    assert "a_tile = tl.permute(tl.reshape(a_desc.load([tl.cast(b0, tl.int32), k, tl.cast(m, tl.int32)])" in text
    assert (
        "TensorDescriptor(a, [a.shape[0], a.shape[1], a.shape[2]], [a.stride(0), a.stride(1), 1], [1, 64, 128])" in text
    )
    assert "(1, 128, 128))" in text  # the result's tile as the block that its descriptor takes
    assert "triton.set_allocator(allocate)" in text


def test_a_column_major_buffer_is_walked_along_its_columns() -> None:
    text = print_module(lower_contraction_gpu(specs.matmul(bf16), PLAIN.replace(**COPIED)))
    printed = TritonBackend().emit(parse(text.replace("strided<[?, 1]>", "strided<[1, ?]>")), H100, "source")
    assert isinstance(printed, str)
    assert "tl.permute(a_desc.load([k, tl.cast(m, tl.int32)]), (1, 0))" in printed


def test_parameters_say_what_a_launch_must_make() -> None:
    module = lower_contraction_gpu(specs.matmul(bf16), PLAIN.replace(**COPIED, vector_bytes=16))
    name, parameters, options = parameters_of(module)
    assert name == "matmul_bf16"
    assert options == {"num_warps": 4, "num_stages": 3}
    described = {p.name: (p.kind, p.role, p.argument, p.order, p.block) for p in parameters if p.role == "descriptor"}
    assert described == {
        "a_desc": ("tensordesc<bf16[128,64]>", "descriptor", 0, (0, 1), (128, 64)),
        "b_desc": ("tensordesc<bf16[64,128]>", "descriptor", 1, (0, 1), (64, 128)),
    }
    assert {p.name: p.divisor for p in parameters if p.name.startswith("out")} == {
        "out_ptr": 16,
        "out_size_0": 1,
        "out_size_1": 8,
        "out_stride_0": 8,
    }


def test_a_descriptor_needs_a_promised_stride_of_one() -> None:
    text = print_module(lower_contraction_gpu(specs.matmul(bf16), PLAIN.replace(**COPIED)))
    with pytest.raises(CompileError, match="a dimension whose stride is promised to be 1"):
        TritonBackend().emit(parse(text.replace("strided<[?, 1]>", "strided<[?, ?]>")), H100, "source")


def test_one_buffer_may_be_both_operands() -> None:
    text = print_module(lower_contraction_gpu(specs.matmul(fp32), PLAIN.replace(**COPIED, tile=(64, 128, 32))))
    square = TritonBackend().emit(
        parse(text.replace('tessera.tile.load"(%b, ', 'tessera.tile.load"(%a, ')), H100, "source"
    )
    assert isinstance(square, str)
    assert "a_desc = TensorDescriptor(a, [a.shape[0], a.shape[1]], [a.stride(0), 1], [64, 32])" in square
    assert "a_desc_1 = TensorDescriptor(a, [a.shape[0], a.shape[1]], [a.stride(0), 1], [32, 128])" in square

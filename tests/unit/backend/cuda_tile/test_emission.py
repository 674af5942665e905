"""Programs of CUDA Tile IR: what is emitted computes what Tile IR and the references do, for every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import tessera
from tessera import op
from tessera.backend.cuda_tile.compilation.assembler import remarks_in
from tessera.backend.cuda_tile.compilation.disassembly import counted
from tessera.backend.cuda_tile.emission.kernel import emit
from tessera.backend.cuda_tile.program.bytecode import encode, varint
from tessera.backend.cuda_tile.program.text import text_of
from tessera.errors import CompileError
from tessera.ir.parsing import parse
from tessera.ops import oracle
from tessera.scheduling.language.schedule import KnobValue
from tessera.target import gpu
from tests.unit.backend.cuda_tile.device import Interpreted, interpreting

PRODUCT: dict[str, KnobValue] = {"tile": (32, 32, 16), "warps": 4}


@pytest.fixture(scope="module")
def device() -> Iterator[Interpreted]:
    with interpreting() as known:
        yield known


def on(*shape: int, dtype: str = "fp32") -> tessera.Tensor:
    """Values of the device, a NaN among those of floats."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    made.view(-1)[-1] = torch.nan
    return (
        op.tensor(made, device="interpreter")
        if dtype == "fp32"
        else op.cast(op.tensor(made, device="interpreter"), dtype)
    )


def finite(*shape: int, dtype: torch.dtype = torch.bfloat16) -> tessera.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return op.tensor(made.to(dtype), device="interpreter")


FAMILIES: dict[str, Callable[[], tessera.Tensor]] = {
    "map": lambda: op.gelu(on(30, 70) * 2.0 + on(70)),
    "map_bf16": lambda: op.where(on(30, 70, dtype="bf16") > 0.0, 1.0, on(30, 1, dtype="bf16")),
    "functions": lambda: (
        op.expm1(on(5, 9)) + op.log1p(op.abs(on(5, 9))) + op.round(on(5, 9) * 4.0) + op.trunc(on(5, 9))
    ),
    "rows": lambda: op.softmax(finite(30, 70)),
    "long_rows": lambda: op.softmax(finite(3, 5000, dtype=torch.float32)),
    "sum": lambda: op.sum(finite(30, 70, dtype=torch.float32), axis=-1),
    "columns": lambda: op.max(on(30, 70), axis=0),
    "argmax": lambda: op.argmax(finite(30, 70, dtype=torch.float32), axis=-1),
    "norm": lambda: op.layer_norm(finite(9, 70), finite(70), finite(70)),
    "product": lambda: op.matmul(finite(65, 40), finite(40, 50)).pin(**PRODUCT),
    "product_fp32": lambda: op.matmul(on(65, 40), on(40, 50)).pin(**PRODUCT),
    "persistent": lambda: op.matmul(finite(130, 40), finite(40, 150)).pin(**PRODUCT, grid="persistent"),
    "batched": lambda: op.matmul(finite(3, 33, 40), finite(40, 33)).pin(**PRODUCT),
    "transposed": lambda: op.matmul(finite(40, 65).T, finite(50, 40).T).pin(**PRODUCT),
    "fused": lambda: op.silu(op.matmul(finite(65, 40), finite(40, 50)).pin(**PRODUCT) + finite(50)),
    "attention": lambda: op.flash_attention(
        finite(1, 2, 65, 32), finite(1, 1, 100, 32), finite(1, 1, 100, 32), causal=True
    ),
    "bytes": lambda: op.cast(finite(9, 70, dtype=torch.float32) * 30 + 127, "uint8") + 77,
    "bytes as floats": lambda: (op.cast(finite(9, 70, dtype=torch.float32) > 0, "uint8") * 200).to("fp32") * 0.5,
    "shorts": lambda: op.cast(finite(9, 70, dtype=torch.float32) * 9000, "int16") * 3,
    "integers": lambda: op.sum(op.cast(finite(30, 70, dtype=torch.float32) * 9.0, "int32"), axis=-1),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_computes_what_tile_ir_and_its_reference_do(device: Interpreted, name: str) -> None:
    before = sum(device.launches.values())
    result = FAMILIES[name]()
    expected, found = oracle.reference(result), result.torch()
    assert sum(device.launches.values()) > before
    if not found.dtype.is_floating_point:
        assert torch.equal(found, expected.to(found.dtype))
        return
    bound = 64 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), expected.double(), rtol=bound, atol=bound, equal_nan=True)


COPY = """
"tessera.tile.kernel"() ({{
^bb0(%x: memref<?x?xf32, strided<[?, 1]>>, %y: memref<?x?xf32, strided<[?, 1]>>):
  %zero = arith.constant 0 : index
  %offset = arith.constant 16 : index
  %rows = "memref.dim"(%x, %zero) : (memref<?x?xf32, strided<[?, 1]>>, index) -> index
  "tessera.tile.parallel"(%rows) ({{
  ^bb1(%lower: index, %upper: index):
    %further = arith.addi %lower, %offset : index
    %a = "tessera.tile.load"({buffer}, {at}, %zero) {{dims = array<i64: 0, 1>, in_bounds = array<i1: 0, {promised}>,
      fill = {fill} : f32}} : (memref<?x?xf32, strided<[?, 1]>>, index, index) -> vector<8x16xf32>
    "tessera.tile.store"(%a, %y, %lower, %zero) {{dims = array<i64: 0, 1>, in_bounds = array<i1: 0, 0>}}
      : (vector<8x16xf32>, memref<?x?xf32, strided<[?, 1]>>, index, index) -> ()
    "tessera.tile.yield"() : () -> ()
  }}) {{steps = array<i64: 8>, split = 0 : i64}} : (index) -> ()
}}) {{sym_name = "copied", outputs = array<i64: 1>}} : () -> ()
"""


def copied(at: str = "%lower", fill: str = "0.0", promised: int = 1, buffer: str = "%x") -> str:
    """Tile IR that copies tiles of 8 rows and 16 columns."""
    return COPY.format(at=at, fill=fill, promised=promised, buffer=buffer)


@pytest.mark.parametrize(
    ("at", "fill", "promised", "load"),
    [
        ("%lower", "0.0", 1, "load_view_tko"),
        ("%lower", "2.5", 0, "load_ptr_tko"),  # views pad with zero and infinities
        ("%further", "0.0", 1, "load_ptr_tko"),  # a tile further on may lie outside altogether
        ("%lower", "0.0", 0, "load_ptr_tko"),  # so do the first columns of a buffer that has none
    ],
)
def test_tiles_that_begin_inside_and_at_multiples_of_their_extents_are_parts_of_views(
    at: str, fill: str, promised: int, load: str
) -> None:
    text = text_of(emit(parse(copied(at, fill, promised)), gpu("h100")).program)
    assert load in text
    assert "store_ptr_tko" in text


def test_a_kernel_that_reads_what_it_writes_is_refused() -> None:
    with pytest.raises(CompileError, match="reads what it writes"):
        emit(parse(copied(buffer="%y")), gpu("h100"))


def test_the_binary_format_begins_as_it_should_and_is_the_same_each_time() -> None:
    module = parse(copied())
    first, second = (encode(emit(module, gpu("h100")).program) for _ in range(2))
    assert first == second
    assert first[:12] == b"\x7fTileIR\x00\x0d\x03\x00\x00"
    assert first.endswith(b"\0")
    assert b"copied" in first


@pytest.mark.parametrize(("number", "written"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")])
def test_numbers_take_seven_bits_a_byte(number: int, written: bytes) -> None:
    assert varint(number) == written


def test_remarks_are_told_once_with_their_reasons() -> None:
    said = """
    remark[passed]: Load instruction selected
       = note: Instruction = TMA
    remark[passed]: Load instruction selected
       = note: Instruction = TMA
    remark[failed]: Failed to select TMA store instruction
       = reason: limits exceeded
    """
    assert remarks_in(said) == (
        "passed: Load instruction selected (Instruction = TMA) x 2",
        "failed: Failed to select TMA store instruction (limits exceeded)",
    )


def test_instructions_are_counted_by_kind() -> None:
    assert counted("HGMMA.64x64 R1;\n UTMALDG.2D;\n UTMALDG.3D; UTCHMMA gdesc; HMMA.16816") == {
        "wgmma": 1,
        "tcgen05.mma": 1,
        "mma.sync": 1,
        "TMA load": 2,
    }

"""What kernels become on GPUs that need not be there, compiled by tileiras; skipped where that is not installed."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

import pytest

from tessera import op, target
from tessera.backend.contract import StaticFacts
from tessera.backend.cuda_tile.compilation import assembler
from tessera.backend.registry import gpu_backend
from tessera.compiler.device.gpu import gpu_kernels
from tessera.errors import CompileError, UnsupportedTargetError
from tessera.scheduling.language.schedule import Schedule

_HAS_COMPILER = any(each.name == assembler.PACKAGE for each in metadata.distributions())
_HAS_TRITON = importlib.util.find_spec("triton") is not None
compiles = pytest.mark.skipif(
    not (_HAS_COMPILER and _HAS_TRITON), reason="tileiras or Triton's disassembler is not installed"
)
PRODUCT = Schedule.parse("tile=(128,128,64), backend='cuda_tile'")


@compiles
@pytest.mark.parametrize(
    ("gpu", "wanted"), [("h100", ("wgmma", "TMA load", "setmaxnreg")), ("b200", ("tcgen05.mma", "TMA load"))]
)
def test_a_product_reaches_the_engines_of_its_gpu_and_is_found_on_disk(
    gpu: str, wanted: tuple[str, ...], cache_dir: Path
) -> None:
    (kernel,) = gpu_kernels(op.matmul, (4096, 4096, 4096), "bf16", target.gpu(gpu), PRODUCT)
    facts = kernel.facts
    assert isinstance(facts, StaticFacts)
    assert all(facts.instructions.get(name) for name in wanted)
    assert facts.spill_bytes == 0
    assert 0 < facts.registers <= 255
    assert facts.compiler == assembler.version()
    assert facts.text.startswith("// ")
    backend = gpu_backend(name="cuda_tile")
    made = backend.compile(kernel.module, target.gpu(gpu))
    kept = len(list((cache_dir / "cuda_tile").glob("*.cubin")))
    assert backend.compile(kernel.module, target.gpu(gpu)) == made
    assert (made.launched_threads, made.launched_shared_bytes, made.launch.is_tile) == (1, 0, True)
    assert made.image[:4] == b"\x7fELF"
    assert len(list((cache_dir / "cuda_tile").glob("*.cubin"))) == kept


@compiles
def test_what_tileiras_refuses_is_an_error_with_its_words() -> None:
    with pytest.raises(CompileError, match="tileiras ended with status"):
        assembler.assemble(b"no program", target.gpu("h100"))


def test_a_gpu_that_it_has_no_code_for_is_refused() -> None:
    with pytest.raises(UnsupportedTargetError, match="gfx942"):
        assembler.require_architecture(target.gpu("mi300x"))

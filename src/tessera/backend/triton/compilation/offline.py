"""Compiles printed kernels for GPUs that need not be there: reads requests as JSON from stdin, prints facts and machine
code (in base 64) as JSON.

A program of its own, because a compiler that aborts takes its process with it. It is run by its path and imports
nothing of this package: that would load torch, which takes longer than most kernels take to compile.
Registers and spills of NVIDIA's kernels are what ptxas reports, of AMD's what the kernel's metadata says.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import linecache
import os
import re
import sys
import tempfile
import types
from collections.abc import Mapping
from typing import Any

NVIDIA_INSTRUCTIONS = {
    "wgmma": r"\bwgmma\.mma_async\b",
    "tcgen05.mma": r"\btcgen05\.mma\b",
    "mma.sync": r"\bmma\.sync\b",
    "fp8 products": r"\b(?:wgmma|mma|tcgen05)\.mma\S*(?:\.e4m3|\.e5m2|f8f6f4)|\bmma\.sync\S*(?:\.e4m3|\.e5m2)",
    "tf32 products": r"\b(?:wgmma|mma|tcgen05)\.\S*tf32",
    "cp.async": r"\bcp\.async\.c[ag]\b",
    "cp.async.bulk.tensor": r"\bcp\.async\.bulk\.tensor\b",
    "setmaxnreg": r"\bsetmaxnreg\b",
    "maxnreg": r"\.maxnreg\b",
    "evict_first": r"\bL1::evict_first\b",
    "evict_last": r"\bL1::evict_last\b",
    "clock": r"%globaltimer\b",
    "ld.global.v4": r"\bld\.global\S*\.v4\b",
}
AMD_INSTRUCTIONS = {
    "v_mfma": r"\bv_mfma\w+",
    "fp8 products": r"\bv_mfma\w*_(?:fp8|bf8)\w*",
    "tf32 products": r"\bv_mfma\w*xf32\w*",
    "clock": r"\bs_memrealtime\b",
    "load 16 bytes": r"\b(?:global|buffer)_load_dwordx4\b",
    "ds_read 16 bytes": r"\bds_read_b128\b",
}
"""Name of an instruction that matters -> how it is found in PTX or in GCN's assembly."""
TTGIR_OPERATIONS = (
    "scf.if",
    "tt.get_num_programs",
    "ttg.async_copy_global_to_local",
    "ttg.warp_specialize",
    "ttng.async_tma_copy_global_to_local",
    "ttng.async_tma_copy_local_to_global",
    "ttng.tc_gen5_mma",
    "ttng.tensormap_create",
    "ttng.warp_group_dot",
)
"""What Triton made of a schedule: operations of its GPU dialects that are counted."""

_HOST_ELEMENT_TYPES = {8: 10, 9: 8, 10: 9}
"""Element types of tensor maps as Triton's metadata numbers them, PTX's way -> `CUtensorMapDataType`, where the two
differ: fp32 with denormals flushed, fp64, bf16 (`TMA_DTYPE_DEVICE_TO_HOST` in Triton 3.6, backends/nvidia/driver.py).
"""


def main() -> None:
    """Answers every request of a JSON list in turn, at the niceness that the command line asks for."""
    os.nice(int(sys.argv[-1]))  # what it starts inherits it
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"  # what ptxas reports is not in Triton's cache
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    # Triton reads its results back from its cache, which others may be able to write.
    with tempfile.TemporaryDirectory(prefix="tessera-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        print(json.dumps([_answer(request) for request in json.load(sys.stdin)]))


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import PTXASError

    try:
        return _compile(request)
    except (CompilationError, PTXASError, RuntimeError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _compile(request: Mapping[str, Any]) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = _load(request["path"], request["text"])[request["function"]]
    attributes = {
        (index,): [["tt.divisibility", request["divisors"][name]]]
        for index, name in enumerate(request["signature"])
        if name in request["divisors"]
    }
    arch = request["arch"]
    amd = arch.startswith("gfx")
    target = GPUTarget("hip", arch, 64) if amd else GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        compiled = triton.compile(
            ASTSource(function, request["signature"], {}, attributes), target=target, options=request["options"]
        )
    found = _amd_facts(compiled.asm["amdgcn"]) if amd else _nvidia_facts(compiled.asm["ptx"], log.getvalue())
    image: bytes = compiled.asm["hsaco" if amd else "cubin"]
    metadata = compiled.metadata
    return found | {
        "compiler": f"Triton {triton.__version__}",
        "remarks": [],
        "shared_bytes": metadata.shared,
        "warps": metadata.num_warps,
        "stages": metadata.num_stages,
        "tensor_memory_columns": getattr(metadata, "tmem_size", None) or 0,
        "operations": _operation_counts(compiled.asm["ttgir"]),
        "launch": _launch_facts(metadata, amd),
        "image": base64.b64encode(image).decode(),
        "image_sha256": hashlib.sha256(image).hexdigest(),
    }


def _operation_counts(ttgir: str) -> dict[str, int]:
    return _counts({name: rf"\b{re.escape(name)}\b" for name in TTGIR_OPERATIONS}, ttgir)


def _launch_facts(metadata: Any, amd: bool) -> dict[str, Any]:
    """The fields of `objects.LaunchFacts`; AMD's launcher passes no scratch memory and makes no tensor maps so."""
    maps = [] if amd else metadata.tensordesc_meta or []
    return {
        "scratch_bytes": 0 if amd else metadata.global_scratch_size,
        "scratch_alignment": 1 if amd else metadata.global_scratch_align,
        "profile_scratch_bytes": metadata.profile_scratch_size,
        "profile_scratch_alignment": metadata.profile_scratch_align,
        "clusters": metadata.num_ctas,
        "cooperative": metadata.launch_cooperative_grid,
        "dependent": not amd and metadata.launch_pdl,
        "is_tile": False,
        "tensor_maps": [
            {
                "swizzle": each["swizzle"],
                "element_bytes": each["elem_size"],
                "element_type": _HOST_ELEMENT_TYPES.get(each["elem_type"], each["elem_type"]),
                "box": each["block_size"],
            }
            for each in maps
        ],
    }


def _load(path: str, text: str) -> dict[str, Any]:
    """What a printed source defines. It runs as it was sent; Triton reads the file's lines from Python's cache of them,
    so that the file is not looked at.
    """
    module = types.ModuleType("printed")
    module.__file__ = path
    sys.modules["printed"] = module  # where `inspect` looks for a function's file
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    exec(compile(text, path, "exec"), module.__dict__)
    return module.__dict__


def _nvidia_facts(ptx: str, log: str) -> dict[str, Any]:
    used = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if used is None or spills is None:
        raise RuntimeError(f"ptxas reported no registers: {log.strip()!r}")
    return {
        "registers": int(used[1]),
        "spill_bytes": int(spills[1]) + int(spills[2]),
        "instructions": _counts(NVIDIA_INSTRUCTIONS, ptx),
    }


def _amd_facts(assembly: str) -> dict[str, Any]:
    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s*(\d+)", assembly)
        if found is None:
            raise RuntimeError(f"the kernel's metadata lacks .{key}")
        return int(found[1])

    return {
        # On CDNA 3 a wave's vector and accumulator registers come from one file, and are counted together. What scalar
        # registers spill goes to lanes of vector registers, not to memory.
        "registers": number("vgpr_count"),
        "spill_bytes": 4 * number("vgpr_spill_count"),
        "instructions": _counts(AMD_INSTRUCTIONS, assembly),
    }


def _counts(patterns: Mapping[str, str], text: str) -> dict[str, int]:
    counts = {name: len(re.findall(pattern, text)) for name, pattern in patterns.items()}
    return {name: count for name, count in counts.items() if count}


if __name__ == "__main__":
    main()

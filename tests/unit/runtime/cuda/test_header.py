"""Structures, constants and prototypes are those of `cuda.h`, which Triton's wheel carries."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tessera.runtime.cuda import structures as cuda
from tessera.runtime.cuda.libcuda import PROTOTYPES
from tessera.runtime.cuda.results import FAULTS, NAMES

pytest.importorskip("triton", reason="the extra `triton` is not installed")

TYPES: dict[str, Any] = {
    "unsigned int": ctypes.c_uint,
    "int": ctypes.c_int,
    "void **": ctypes.c_void_p,
    "CUfunction": ctypes.c_void_p,
    "CUkernel": ctypes.c_void_p,
    "CUcontext": ctypes.c_void_p,
    "CUstream": ctypes.c_void_p,
    "CUlaunchAttribute *": ctypes.c_void_p,
}
HANDLES = r"CU(?:context|module|function|stream|event|graph|graphNode|graphExec)\b"
SCALARS: dict[str, Any] = {
    "unsigned int": ctypes.c_uint,
    "cuuint32_t": ctypes.c_uint,
    "int": ctypes.c_int,
    "CUdevice": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "unsigned char": ctypes.c_ubyte,
    "unsigned long long": ctypes.c_uint64,
    "CUdeviceptr": ctypes.c_uint64,
}


@pytest.fixture(scope="module")
def header() -> str:
    found = importlib.util.find_spec("triton")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "backends" / "nvidia" / "include" / "cuda.h").read_text()


def declared(header: str, name: str) -> list[tuple[str, str]]:
    """(type, name) of each field of a structure."""
    match = re.search(rf"typedef struct {name}_st \{{(.*?)\n\}}", header, re.S)
    assert match is not None
    text = re.sub(r"/\*.*?\*/", "", match[1], flags=re.S)
    return re.findall(r"^\s*((?:unsigned )?\w+(?: \**(?=\w))?)\s*(\w+);", text, re.M)


@pytest.mark.parametrize(
    ("structure", "name"),
    [(cuda.LaunchConfig, "CUlaunchConfig"), (cuda.KernelNodeParams, "CUDA_KERNEL_NODE_PARAMS_v2")],
)
def test_a_structure_has_the_fields_of_the_header(header: str, structure: type[ctypes.Structure], name: str) -> None:
    fields = [(field, TYPES[kind.strip()]) for kind, field in declared(header, name)]
    assert list(structure._fields_) == fields


def test_structures_lie_in_memory_as_documented() -> None:
    offsets = {name: getattr(cuda.LaunchConfig, name).offset for name, *_ in cuda.LaunchConfig._fields_}
    assert (offsets["sharedMemBytes"], offsets["hStream"], offsets["attrs"], offsets["numAttrs"]) == (24, 32, 40, 48)
    assert ctypes.sizeof(cuda.LaunchConfig) == 56
    node = cuda.KernelNodeParams
    places = [getattr(node, name).offset for name in ("func", "gridDimX", "sharedMemBytes", "kernelParams", "extra")]
    assert places == [0, 8, 32, 40, 48]
    assert (node.kern.offset, node.ctx.offset, ctypes.sizeof(node)) == (56, 64, 72)
    assert (ctypes.sizeof(cuda.LaunchAttribute), cuda.LaunchAttribute.value.offset) == (72, 8)
    assert ctypes.sizeof(cuda.LaunchAttributeValue) == 64
    assert ctypes.sizeof(cuda.TensorMap) == 128


def test_result_codes_have_the_names_of_the_header(header: str) -> None:
    codes = {name: int(code) for name, code in re.findall(r"(CUDA_ERROR_[A-Z0-9_]+)\s*= (\d+)", header)}
    assert {name: codes[name] for name in NAMES.values()} == {name: code for code, name in NAMES.items()}
    assert {NAMES[code] for code in FAULTS} >= {"CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED"}


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("CU_LAUNCH_ATTRIBUTE_", "ATTRIBUTE_"),
        ("CU_FUNC_ATTRIBUTE_", "FUNC_(?!CACHE)"),
        ("CU_FUNC_CACHE_", "FUNC_CACHE_"),
        ("CU_DEVICE_ATTRIBUTE_", "DEVICE_"),
        ("CU_POINTER_ATTRIBUTE_", "POINTER_"),
        ("CU_EVENT_", "EVENT_"),
        ("CU_CLUSTER_SCHEDULING_POLICY_", "CLUSTER_SCHEDULING_POLICY_"),
    ],
)
def test_constants_have_the_values_of_the_header(header: str, prefix: str, names: str) -> None:
    ours = {
        re.sub(rf"^{names}", prefix, name): value
        for name, value in vars(cuda).items()
        if re.match(names, name) and isinstance(value, int)
    }
    found = {name: int(value, 0) for name, value in re.findall(r"\b(CU_\w+?)\s*= (0x[0-9a-f]+|\d+)", header)}
    assert ours
    assert ours == {name: found[name] for name in ours}


def test_tensor_map_constants_are_numbered_as_in_the_header(header: str) -> None:
    def position(enumeration: str, name: str) -> int:
        match = re.search(rf"typedef enum {enumeration}_enum \{{(.*?)\}}", header, re.S)
        assert match is not None
        return re.findall(r"CU_TENSOR_MAP_\w+", match[1]).index(name)

    assert position("CUtensorMapInterleave", "CU_TENSOR_MAP_INTERLEAVE_NONE") == cuda.TENSOR_MAP_INTERLEAVE_NONE
    promotion = "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"
    assert position("CUtensorMapL2promotion", promotion) == cuda.TENSOR_MAP_L2_PROMOTION_L2_128B
    fill = "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"
    assert position("CUtensorMapFloatOOBfill", fill) == cuda.TENSOR_MAP_FLOAT_OOB_FILL_NONE
    assert "#define CU_TENSOR_MAP_NUM_QWORDS 16" in header


@pytest.mark.parametrize("symbol", PROTOTYPES)
def test_prototypes_are_those_of_the_header(header: str, symbol: str) -> None:
    # A symbol with a version is what the header makes of the plain name; a plain name may be one of its macros.
    plain = re.sub(r"_v\d$", "", symbol)
    aliases = {made: name for name, made in re.findall(r"#define (\w+)\s+(cu\w+)\b", header)}
    name = plain if f"CUAPI {symbol}(" not in header else symbol
    declaration = re.search(rf"CUresult CUDAAPI (?:{aliases.get(symbol, name)}|{name})\((.*?)\);", header, re.S)
    assert declaration is not None
    expected = [_argument(text.strip()) for text in declaration[1].split(",")]
    assert list(PROTOTYPES[symbol]) == expected


def _argument(text: str) -> Any:
    if "*" in text or re.match(rf"(?:const )?{HANDLES}", text):
        # The tensor's address is a pointer of a device, which ctypes passes as a number.
        return ctypes.c_uint64 if "globalAddress" in text else ctypes.c_void_p
    kind = text.rpartition(" ")[0]
    return SCALARS.get(kind, ctypes.c_int)  # enumerations are ints

"""Targets: what the texts of Linux say about a CPU, what data sheets say about GPUs, ceilings on disk."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.errors import CacheFormatError, UnsupportedTargetError
from tessera.target import GPUS, Ceilings, ComputeCeiling, MemoryCeiling, MemoryLevel, Target, detect, gpu
from tessera.target import cpu as cpu_module
from tessera.target.cpu import cpu_name, describe, parse_list

HASWELL = frozenset(["avx", "avx2", "fma", "f16c"])
ZEN4 = HASWELL | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "avx512vnni"}


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """The /sys folder of four logical processors on two cores, which share an L3."""
    caches = [
        ("1", "Data", "32K", 1),
        ("1", "Instruction", "32K", 1),
        ("2", "Unified", "1024K", 1),
        ("3", "Unified", "32M", 2),
    ]
    for processor in range(4):
        core = processor % 2
        siblings = f"{core},{core + 2}"
        folder = tmp_path / f"cpu{processor}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology" / "thread_siblings_list").write_text(f"{siblings}\n")
        for index, (level, kind, size, cores) in enumerate(caches):
            cache = folder / "cache" / f"index{index}"
            cache.mkdir(parents=True)
            texts = {
                "level": level,
                "type": kind,
                "size": size,
                "coherency_line_size": "64",
                "shared_cpu_list": siblings if cores == 1 else "0-3",
            }
            for name, text in texts.items():
                (cache / name).write_text(f"{text}\n")
    return tmp_path


def cpu(system: Path, features: frozenset[str], processors: frozenset[int], machine: str = "x86_64") -> Target:
    entries = ("processor\t: 0", "cpu family\t: 25", "model\t\t: 17", "model name\t: AMD EPYC 9654 96-Core Processor")
    cpuinfo = "\n".join(entries) + "\n\nprocessor\t: 1\n"
    return describe("znver4", features, processors, cpuinfo, "MemTotal:  2048 kB\nMemFree: 1 kB\n", system, machine)


def test_caches_cores_and_memory_are_read_from_the_system(system: Path) -> None:
    found = cpu(system, ZEN4, frozenset(range(4)))
    assert (found.kind, found.arch, found.name) == ("cpu", "znver4", "AMD EPYC 9654 96-Core Processor")
    assert (found.cores, found.processors) == (2, 4)
    assert found.memory == (
        MemoryLevel("L1", 32 * 2**10, 64, 1),
        MemoryLevel("L2", 2**20, 64, 1),
        MemoryLevel("L3", 32 * 2**20, 64, 2),
        MemoryLevel("DRAM", 2 * 2**20, 64, 2),
    )
    assert found.level("L2") == MemoryLevel("L2", 2**20, 64, 1)
    assert found.level("HBM") is None


def test_only_the_processors_that_may_be_used_count(system: Path) -> None:
    found = cpu(system, ZEN4, frozenset((1, 3)))
    assert (found.cores, found.processors) == (1, 2)
    assert found.level("L3") == MemoryLevel("L3", 32 * 2**20, 64, 1)


def test_a_system_that_hides_its_topology_still_gives_a_target(tmp_path: Path) -> None:
    found = describe("generic", HASWELL, frozenset(range(3)), "", "", tmp_path, "x86_64")
    assert (found.name, found.cores) == ("generic", 3)
    assert found.memory == (MemoryLevel("DRAM", 0, 64, 3),)


@pytest.mark.parametrize(
    ("features", "machine", "bits", "registers"),
    [
        (ZEN4, "x86_64", 512, 32),
        (HASWELL, "x86_64", 256, 16),
        (HASWELL | {"avx512f"}, "x86_64", 256, 16),
        (frozenset(("sse2",)), "x86_64", 128, 16),
        (frozenset(), "aarch64", 128, 32),
    ],
)
def test_vectors_follow_the_features(
    tmp_path: Path, features: frozenset[str], machine: str, bits: int, registers: int
) -> None:
    found = cpu(tmp_path, features, frozenset((0,)), machine)
    assert (found.vector_bits, found.vector_registers) == (bits, registers)


def test_what_can_be_used_is_said_by_name(tmp_path: Path) -> None:
    one = frozenset((0,))
    zen4, haswell = cpu(tmp_path, ZEN4, one), cpu(tmp_path, HASWELL, one)
    assert zen4.has_avx512
    assert zen4.has_avx512bf16
    assert zen4.has_vnni
    assert haswell.has_fma
    assert haswell.has_f16c
    assert not haswell.has_avx512
    assert not haswell.has_avx512bf16
    assert not haswell.has_vnni
    assert not haswell.has_neon
    assert cpu(tmp_path, frozenset(), one, "arm64").has_neon


@pytest.mark.parametrize(
    ("features", "machine", "reason"),
    [
        (ZEN4, "x86_64", None),
        (HASWELL, "x86_64", None),
        (frozenset(), "aarch64", None),
        (frozenset(("avx2",)), "x86_64", "lacks FMA"),
        (frozenset(("sse2",)), "x86_64", "lacks AVX2 and FMA"),
        (frozenset(), "riscv64", r"\(riscv64\) has neither AVX2 nor NEON"),
    ],
)
def test_an_unsupported_cpu_says_what_is_missing(
    tmp_path: Path, features: frozenset[str], machine: str, reason: str | None
) -> None:
    found = cpu(tmp_path, features, frozenset((0,)), machine)
    if reason is None:
        assert found.unsupported_reason() is None
        found.require_supported()
    else:
        with pytest.raises(UnsupportedTargetError, match=reason):
            found.require_supported()


def test_a_name_that_leaves_the_generation_open_is_completed() -> None:
    assert cpu_name("model name : AMD EPYC\ncpu family : 25\nmodel : 17\n") == "AMD EPYC (family 25, model 17)"
    assert cpu_name("model name : Intel(R) Xeon(R) Gold 6148\ncpu family : 6\n") == "Intel(R) Xeon(R) Gold 6148"
    assert cpu_name("") == ""


def test_processor_lists_have_ranges_and_single_numbers() -> None:
    assert parse_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert parse_list("") == frozenset()


def test_this_machine_is_described() -> None:
    found = detect()
    assert found.kind == "cpu"
    assert found.processors == len(os.sched_getaffinity(0))
    assert 1 <= found.cores <= found.processors
    assert found.ceilings is None
    assert found is detect()
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(replace(found)) == hash(found)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H200", "H200-SXM5-141GB"),
        ("sm_90", "H100-SXM5-80GB"),
        ("sm80", "A100-SXM4-80GB"),
        ("mi300x", "MI300X"),
        ("sm_100", "B200"),
    ],
)
def test_a_gpu_is_found_by_name_or_architecture(asked: str, name: str) -> None:
    assert gpu(asked).name == name


@pytest.mark.parametrize("name", GPUS)
def test_a_gpus_facts_hang_together(name: str) -> None:
    found = GPUS[name]
    limits, ceilings = found.gpu, found.ceilings
    assert limits is not None
    assert ceilings is not None
    assert found.unsupported_reason() is None
    assert limits.max_shared_bytes_per_block <= limits.shared_bytes
    half, single = (ceilings.flop_per_s(dtype, found.cores) for dtype in ("bf16", "fp32"))
    assert half is not None
    assert single is not None
    assert half > single
    assert ceilings.byte_per_s("HBM", found.cores) is not None


def test_a_block_on_hopper_may_have_232448_bytes_of_shared_memory() -> None:
    limits = gpu("H200").gpu
    assert limits is not None
    assert limits.max_shared_bytes_per_block == 232_448


def test_an_unknown_gpu_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedTargetError, match=r"(?s)'sm_20'.*known are A100"):
        gpu("sm_20")


CEILINGS = Ceilings(
    "znver4",
    "AMD EPYC",
    "measured",
    (ComputeCeiling("fp32", 1, 2.5e11), ComputeCeiling("fp32", 2, 4.9e11), ComputeCeiling("bf16", 1, 5e11)),
    (MemoryCeiling("DRAM", 1, 2e10), MemoryCeiling("DRAM", 1, 1.4e10, "write_nt"), MemoryCeiling("L2", 1, 1e11)),
    "2025-01-01T00:00:00+00:00",
)


def test_ceilings_are_looked_up_for_just_what_was_measured() -> None:
    assert CEILINGS.flop_per_s("fp32", 2) == 4.9e11
    assert CEILINGS.flop_per_s("bf16", 2) is None
    assert CEILINGS.byte_per_s("DRAM", 1) == 2e10
    assert CEILINGS.byte_per_s("DRAM", 1, "write_nt") == 1.4e10
    assert CEILINGS.byte_per_s("L3", 1) is None
    assert CEILINGS.worker_counts() == (1, 2)
    assert detect().with_ceilings(CEILINGS).ceilings == CEILINGS


def test_ceilings_come_back_from_json_as_they_were() -> None:
    assert Ceilings.from_json(CEILINGS.to_json()) == CEILINGS


def changed(**fields: object) -> str:
    return json.dumps(json.loads(CEILINGS.to_json()) | fields)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no text of ceilings"),
        (CEILINGS.to_json()[:-20], "no text of ceilings"),
        ("[]", "no text of ceilings"),
        ("{}", "no text of ceilings: KeyError 'version'"),
        (changed(version=2), "format 2, this Tessera reads 1"),
        (changed(arch=3), "3 is no text"),
        (changed(compute=[{"dtype": "fp32"}]), "no text of ceilings"),
        (changed(compute=[{"dtype": "fp32", "workers": 1, "flop_per_s": "fast"}]), "is no ceiling"),
        (changed(compute=[{"dtype": "fp32", "workers": 1, "flop_per_s": 0.0}]), "is no ceiling"),
        (changed(memory=[{"level": "L1", "workers": 1, "byte_per_s": float("inf")}]), "is no ceiling"),
    ],
)
def test_a_text_that_is_none_of_ceilings_is_refused(text: str, reason: str) -> None:
    with pytest.raises(CacheFormatError, match=reason):
        Ceilings.from_json(text)


def test_a_matrix_unit_needs_the_system_s_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    unit = {"amx-tile": True, "amx-bf16": True, "amx-int8": True}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: dict.fromkeys(ZEN4, True) | unit)
    monkeypatch.setattr(cpu_module, "amx_refusal", lambda: "not here")
    assert not {name for name in detect.__wrapped__().features if name.startswith("amx")}
    monkeypatch.setattr(cpu_module, "amx_refusal", lambda: None)
    found = detect.__wrapped__()
    assert found.has_amx_bf16
    assert found.has_amx_int8


def test_matrix_units_are_said_by_name(tmp_path: Path) -> None:
    one = frozenset((0,))
    assert not cpu(tmp_path, ZEN4, one).has_amx_bf16
    assert cpu(tmp_path, ZEN4 | {"amx-tile", "amx-bf16"}, one).has_amx_bf16
    assert not cpu(tmp_path, ZEN4 | {"amx-tile", "amx-bf16"}, one).has_amx_int8
    assert not cpu(tmp_path, HASWELL | {"amx-tile", "amx-bf16", "amx-int8"}, one).has_amx_int8

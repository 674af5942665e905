"""Kernel objects of GPUs: made offline, kept on disk, carried as bytes."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera import settings, target
from tessera.backend import container
from tessera.backend import gpu_objects as objects
from tessera.backend.contract import GpuKernelObject, GpuParameter, KernelObject, LaunchFacts, TensorMapFacts
from tessera.dtypes import bf16, fp32
from tessera.errors import CacheFormatError, CompileError
from tessera.ir.tile.divisors import divisors_of, promising
from tessera.ir.tile.operations import find_kernel
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu, map_reduce_gpu_schedule
from tessera.scheduling.language.schedule import Schedule
from tessera.system.priority import at_niceness
from tests.unit.backend.triton import cubin
from tests.unit.scheduling import specs

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.triton import TritonBackend
from tessera.backend.triton.compilation import static
from tessera.backend.triton.compilation.static import kernel_objects, static_facts

PRODUCT = lower_contraction_gpu(specs.matmul(bf16), Schedule(tile=(64, 64, 32), pipeline_depth=2, warps=4))
PROMISED = promising(PRODUCT, [(16, 1, 8, 8, 1), (16, 1, 1, 1, 1), (16, 1, 1, 1, 1)])
SPEC = specs.rows("softmax", fp32)
ROWS = lower_map_reduce_gpu(SPEC, map_reduce_gpu_schedule(SPEC, 1000))


def noted(module: ModuleOp, note: str) -> ModuleOp:
    """The module with a note for readers of its source."""
    return promising(module, divisors_of(find_kernel(module)), note)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with settings.override(cache_dir=tmp_path_factory.getbasetemp() / "gpu-objects"):
        yield


def made(name: str = "sm90") -> GpuKernelObject:
    return TritonBackend().compile(PROMISED, target.gpu(name))


def image_file(kernel: GpuKernelObject) -> Path:
    (path,) = settings.current().triton_dir.glob(f"{kernel.entry}-{kernel.arch}-*.cubin")
    return path


def facts_of(kernel: GpuKernelObject) -> GpuKernelObject:
    """All but the image: its line table holds the time at which the source was written."""
    assert kernel.entry in cubin.read(kernel.image).functions()
    return replace(kernel, image=b"")


def test_the_image_is_a_cubin_whose_symbol_table_has_the_entry() -> None:
    kernel = made()
    code = cubin.read(kernel.image)
    assert code.machine == cubin.EM_CUDA
    assert kernel.entry in code.functions()
    assert len(code.parameters(kernel.entry).places) == len(kernel.parameters) + 2  # and two scratch pointers


def test_an_object_says_what_a_launch_takes() -> None:
    kernel = made()
    assert (kernel.arch, kernel.threads, kernel.compiler[:10]) == ("sm_90", 128, "Triton 3.6")
    assert 0 < kernel.shared_bytes <= 232_448
    assert kernel.registers > 0
    assert kernel.spill_bytes == 0
    assert (kernel.scratch_bytes, kernel.launch.clusters, kernel.launch.cooperative) == (0, 1, False)
    assert kernel.source.count(f"def {kernel.entry}(") == 1
    assert kernel.parameters[:4] == (
        GpuParameter("a_ptr", "*bf16", 0, divisor=16),
        GpuParameter("a_size_0", "i32", 0, "size"),
        GpuParameter("a_size_1", "i32", 0, "size", 1, divisor=8),
        GpuParameter("a_stride_0", "i64", 0, "stride", divisor=8),
    )


def test_amd_gets_a_code_object_with_waves_of_64_threads() -> None:
    kernel = made("gfx942")
    assert kernel.image[:4] == b"\x7fELF"
    (machine,) = struct.unpack_from("<H", kernel.image, 18)
    assert machine == 224  # EM_AMDGPU
    assert kernel.threads == 256


def test_the_container_gives_back_the_same_kernel() -> None:
    maps = (TensorMapFacts(3, 2, 9, (64, 64)),)
    kernel = replace(made(), launch=LaunchFacts(128, 128, clusters=2, tensor_maps=maps))
    data = kernel.to_bytes()
    assert GpuKernelObject.from_bytes(data) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel


@pytest.mark.parametrize("at", [3, 40, -1])
def test_an_altered_container_is_refused(at: int) -> None:
    data = bytearray(made().to_bytes())
    data[at] ^= 1
    with pytest.raises(CacheFormatError):
        GpuKernelObject.from_bytes(bytes(data))


def test_containers_of_cpus_and_gpus_are_told_apart() -> None:
    with pytest.raises(CacheFormatError, match="first bytes"):
        KernelObject.from_bytes(made().to_bytes())


def test_objects_come_from_the_cache_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = made()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("subprocess.run", refuse)
    assert made() == first


@pytest.mark.parametrize("suffix", [".cubin", ".json", ".py"])
def test_damaged_files_are_made_anew(suffix: str) -> None:
    first = made()
    path = image_file(first).with_suffix(suffix)
    sound = path.read_bytes()
    path.write_bytes(sound[: len(sound) // 2])
    assert facts_of(made()) == facts_of(first)
    if suffix == ".py":
        assert path.read_bytes() == sound


def test_a_record_that_is_none_is_refused_though_its_digest_fits() -> None:
    record, image = container.unpack(objects._MAGIC, made().to_bytes())
    maps = {**record["launch"], "tensor_maps": [{"box": 5}]}
    damages: list[dict[str, Any]] = [{"parameters": 7}, {"parameters": [{}]}, {"launch": {}}, {"colour": "red"}]
    for damage in [*damages, {"launch": maps}]:
        with pytest.raises(CacheFormatError):
            GpuKernelObject.from_bytes(container.pack(objects._MAGIC, {**record, **damage}, image))


def test_the_source_is_compiled_as_it_was_sent_whatever_lies_in_its_file(tmp_path: Path) -> None:
    (request,) = static._requests([ROWS], target.gpu("sm80"))
    other = tmp_path / request.source.name
    other.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    asked = [{**request.asked, "path": str(other)}]
    program = [sys.executable, "-P", str(static.PROGRAM), "0"]
    ran = subprocess.run(program, input=json.dumps(asked), capture_output=True, text=True, check=True)
    assert "error" not in json.loads(ran.stdout.splitlines()[-1])[0]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("launch", ["[]", "{}", '{"scratch_bytes": 1}'])
def test_launch_facts_of_another_form_are_made_anew(launch: str) -> None:
    first = made()
    path = image_file(first).with_suffix(".json")
    head, _, tail = path.read_text().partition('"launch": {')
    path.write_text(f'{head}"launch": {launch}{tail[tail.index("}") + 1 :]}')
    assert facts_of(made()) == facts_of(first)


def test_facts_alone_need_no_image() -> None:
    first = made()
    image_file(first).unlink()
    (facts,) = static_facts([PROMISED], target.gpu("sm90"))
    assert not isinstance(facts, CompileError)
    assert facts.operations["ttng.warp_group_dot"] > 0
    assert not list(settings.current().triton_dir.glob(f"{first.entry}-sm_90-*.cubin"))
    assert facts_of(made()) == facts_of(first)


LOADED = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
print(sorted({"tessera", "torch", "triton"} & sys.modules.keys()))
"""


def test_the_compiling_process_does_not_wait_for_torch() -> None:
    (request,) = static._requests([ROWS], target.gpu("sm80"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOADED, str(static.PROGRAM), "0"],
        input=json.dumps([request.asked]),
        capture_output=True,
        text=True,
        check=True,
    )
    answers, loaded = done.stdout.splitlines()[-2:]
    assert json.loads(answers)[0]["registers"] > 0
    assert loaded == "['triton']"


def test_several_kernels_are_compiled_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    run = subprocess.run

    def counted(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        return run(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    found = kernel_objects([ROWS, noted(ROWS, "another"), ROWS], target.gpu("sm80"))
    assert len(calls) == 1
    objects = [each for each in found if isinstance(each, GpuKernelObject)]
    assert objects[0] == objects[2]
    assert objects[1].source == f"# another\n{objects[0].source}"


def test_a_compiler_that_crashes_is_the_problem_of_that_kernel_only(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def crashing(*arguments: object, input: str, **options: object) -> object:
        """Triton's process, which aborts at the product."""
        if any(request["function"].startswith("matmul") for request in json.loads(input)):
            return subprocess.CompletedProcess([], -6, "", "LLVM ERROR: out of luck\n")
        return run(*arguments, input=input, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", crashing)
    crashed, compiled = kernel_objects([noted(PRODUCT, "crashes"), noted(ROWS, "compiles")], target.gpu("sm90"))
    assert isinstance(crashed, CompileError)
    assert "ended with status -6: LLVM ERROR: out of luck" in crashed.message
    assert isinstance(compiled, GpuKernelObject)


@pytest.mark.parametrize("processors", [1, 8])
def test_answers_come_back_in_order_however_many_processes_compile(
    monkeypatch: pytest.MonkeyPatch, processors: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: processors)

    def refusing(arguments: Sequence[str], input: str, **options: object) -> subprocess.CompletedProcess[str]:
        answers = [{"error": Path(request["path"]).name} for request in json.loads(input)]
        return subprocess.CompletedProcess([], 0, json.dumps(answers), "")

    monkeypatch.setattr(subprocess, "run", refusing)
    notes = [f"number {number} of {processors}" for number in range(7)]
    found = kernel_objects([noted(ROWS, note) for note in notes], target.gpu("sm90"))
    names = [_source_of(note) for note in notes]
    assert [name in str(error) for name, error in zip(names, found, strict=True)] == [True] * 7
    assert len(set(names)) == 7


def test_beside_a_running_program_one_process_of_low_priority_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []

    def refusing(arguments: Sequence[str], input: str, **options: object) -> subprocess.CompletedProcess[str]:
        requests = json.loads(input)
        asked.append((len(requests), arguments[-1]))
        return subprocess.CompletedProcess([], 0, json.dumps([{"error": "none"} for _ in requests]), "")

    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(subprocess, "run", refusing)
    with at_niceness(10):
        kernel_objects([noted(ROWS, f"beside {number}") for number in range(3)], target.gpu("sm90"))
    assert asked == [(3, "10")]


def _source_of(note: str) -> str:
    (path,) = [
        path for path in settings.current().triton_dir.glob("*.py") if path.read_text().startswith(f"# {note}\n")
    ]
    return path.name


def test_what_triton_refuses_is_an_error_of_that_kernel() -> None:
    large = lower_contraction_gpu(specs.matmul(bf16), Schedule(tile=(2048, 1024, 16), pipeline_depth=2, warps=8))
    with pytest.raises(CompileError, match="numel"):
        TritonBackend().compile(large, target.gpu("sm90"))


def test_a_cpu_is_refused() -> None:
    with pytest.raises(CompileError, match="run on GPUs"):
        TritonBackend().compile(ROWS, target.detect())


def test_the_words_of_a_descriptor_are_address_extents_and_strides() -> None:
    parameter = GpuParameter("a_desc", "tensordesc<bf16[128, 64]>", 0)
    assert parameter.block == (128, 64)
    assert parameter.words == 5
    assert GpuParameter("a", "*bf16", 0).words == 1

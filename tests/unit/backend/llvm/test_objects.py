"""Kernel objects: the container, the cache on disk and its faults, and loading on the wrong CPU."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tessera.backend import container, contract
from tessera.backend.contract import CpuBackend, KernelObject, Parameter
from tessera.backend.llvm import LLVMBackend
from tessera.backend.llvm.machine_code import engine
from tessera.backend.llvm.machine_code.objects import CacheUnwritableWarning, ObjectCache, identity
from tessera.errors import ArgumentError, CacheFormatError, CompileError, UnsupportedTargetError
from tessera.ir.parsing import parse, print_module
from tessera.runtime.plans.calling import call, words_of
from tessera.system.private import CacheRefusedWarning
from tessera.target import detect
from tests.unit.backend.llvm.harness import avx2

BUFFER = "memref<?xf32, strided<[1]>>"
TEXT = f"""
"tessera.tile.kernel"() ({{
^bb0(%X: {BUFFER}, %scale: f32, %Y: {BUFFER}):
  %c0 = arith.constant 0 : index
  %n = memref.dim %X, %c0 : {BUFFER}
  %s = "tessera.tile.broadcast"(%scale) : (f32) -> vector<16xf32>
  "tessera.tile.parallel"(%n) ({{
  ^box(%lo: index, %hi: index):
    "tessera.tile.for"(%lo, %hi) ({{
    ^at(%i: index):
      %x = "tessera.tile.load"(%X, %i) {{dims = array<i64: 0>, in_bounds = array<i1: false>}}
        : ({BUFFER}, index) -> vector<16xf32>
      %y = arith.mulf %x, %s : vector<16xf32>
      "tessera.tile.store"(%y, %Y, %i) {{dims = array<i64: 0>, in_bounds = array<i1: false>}}
        : (vector<16xf32>, {BUFFER}, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }}) {{step = 16}} : (index, index) -> ()
  }}) {{steps = array<i64: 16>, split = 0}} : (index) -> ()
}}) {{sym_name = "scale", outputs = array<i64: 2>}} : () -> ()
"""
MODULE = parse(TEXT)


def scaled(kernel: KernelObject) -> torch.Tensor:
    x, y = torch.arange(21.0), torch.zeros(21)
    call(LLVMBackend().load(kernel), [x, 2.0, y], workers=2)
    assert torch.equal(y, 2 * x)
    return y


def test_the_container_gives_back_the_same_kernel() -> None:
    kernel = LLVMBackend().compile(MODULE, detect(), keep=False)
    assert KernelObject.from_bytes(kernel.to_bytes()) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert kernel.parameters == (Parameter("f32", (None,), (1,)), Parameter("f32"), Parameter("f32", (None,), (1,)))
    assert kernel.outputs == (2,)
    scaled(KernelObject.from_bytes(kernel.to_bytes()))
    backwards = replace(kernel, parameters=(Parameter("f32", (None,), (-1,)),))
    assert KernelObject.from_bytes(backwards.to_bytes()) == backwards


def test_an_altered_container_is_refused() -> None:
    data = LLVMBackend().compile(MODULE, detect(), keep=False).to_bytes()
    for damaged in (b"", data[:20], data[:-1], data[:200] + b"?" + data[201:], b"X" + data[1:]):
        with pytest.raises(CacheFormatError):
            KernelObject.from_bytes(damaged)


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"[" * 100_000, b"[]", b"null", b"{}", b"\xff", b'{"entry": 1}', "entry", "parameters", "features"],
    ids=repr,
)
def test_a_header_that_is_none_is_refused_though_its_digest_fits(header: bytes | str) -> None:
    kernel = LLVMBackend().compile(MODULE, detect(), keep=False)
    if isinstance(header, str):
        header = json.dumps({**container.unpack(contract._MAGIC, kernel.to_bytes())[0], header: 7}).encode()
    body = len(header).to_bytes(8, "little") + header + kernel.code
    with pytest.raises(CacheFormatError):
        KernelObject.from_bytes(contract._MAGIC + body + hashlib.sha256(body).digest())


def test_source_assembly_and_object_can_be_emitted() -> None:
    backend: CpuBackend = LLVMBackend()
    target = detect()
    assert "define void @scale(" in str(backend.emit(MODULE, target, "source"))
    assert "scale:" in str(backend.emit(MODULE, target, "asm"))
    emitted = backend.emit(MODULE, target, "object")
    assert isinstance(emitted, bytes)
    scaled(KernelObject.from_bytes(emitted))


def test_a_kernel_is_found_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LLVMBackend(ObjectCache(tmp_path))
    first = backend.compile(MODULE, detect())

    def refuse(*_: object) -> None:
        raise AssertionError("compiled although the kernel is on disk")

    monkeypatch.setattr(engine, "compile_object", refuse)
    assert LLVMBackend(ObjectCache(tmp_path)).compile(parse(TEXT), detect()) == first


def test_a_home_shared_by_two_cpus_holds_a_kernel_for_each(tmp_path: Path) -> None:
    backend = LLVMBackend(ObjectCache(tmp_path))
    kernels = [backend.compile(MODULE, target) for target in (detect(), avx2(), replace(detect(), arch="x86-64"))]
    assert len(list(tmp_path.iterdir())) == len({kernel.to_bytes() for kernel in kernels})
    for kernel in kernels:
        scaled(kernel)


@pytest.mark.parametrize("damage", [b"", b"TESSERA-KERNEL-1\n", None])
def test_a_damaged_file_is_compiled_anew_and_replaced(tmp_path: Path, damage: bytes | None) -> None:
    backend = LLVMBackend(ObjectCache(tmp_path))
    kernel = backend.compile(MODULE, detect())
    (file,) = tmp_path.iterdir()
    sound = file.read_bytes()
    file.write_bytes(sound[:-40] if damage is None else damage)
    with pytest.warns(CacheRefusedWarning, match=f"E_CACHE_FORMAT: {file}"):
        assert backend.compile(MODULE, detect()) == kernel
    assert file.read_bytes() == sound
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_cannot_be_written_is_warned_about_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    backend = LLVMBackend(ObjectCache(tmp_path / "file" / "objects"))
    with pytest.warns(CacheUnwritableWarning, match="E_CACHE_IO") as seen:
        scaled(backend.compile(MODULE, detect()))
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled(backend.compile(MODULE, detect()))


def test_processes_that_write_at_once_leave_one_sound_file(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tessera.backend.llvm import LLVMBackend
from tessera.backend.llvm.machine_code.objects import ObjectCache
from tessera.ir.parsing import parse
from tessera.target import detect
LLVMBackend(ObjectCache(Path({str(tmp_path)!r}))).compile(parse({print_module(MODULE)!r}), detect())
"""
    source = Path(__file__).parents[4] / "src"
    writers = [subprocess.Popen([sys.executable, "-c", script], env={"PYTHONPATH": str(source)}) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    (file,) = tmp_path.iterdir()
    scaled(KernelObject.from_bytes(file.read_bytes()))


def test_identities_differ_where_the_code_may() -> None:
    target = detect()
    others = [
        identity(parse(TEXT.replace("arith.mulf", "arith.addf")), target, "1"),
        identity(parse(TEXT.replace("%x, %s", "%s, %x")), target, "1"),
        identity(parse(TEXT.replace("strided<[1]>", "strided<[?]>")), target, "1"),
        identity(parse(TEXT.replace("step = 16", "step = 32")), target, "1"),
        identity(MODULE, replace(target, features=target.features - {"fma"}), "1"),
        identity(MODULE, target, "2"),
    ]
    same = identity(MODULE, target, "1")
    assert same == identity(parse(print_module(MODULE)), target, "1")
    assert len({same, *others}) == 1 + len(others)


def test_a_kernel_for_another_cpu_is_not_loaded() -> None:
    kernel = LLVMBackend().compile(MODULE, detect(), keep=False)
    foreign = replace(kernel, arch="future", features=(*kernel.features, "avx9000"))
    with pytest.raises(UnsupportedTargetError, match="future; this CPU lacks avx9000"):
        LLVMBackend().load(foreign)


def test_a_cpu_without_avx2_is_refused() -> None:
    old = replace(detect(), arch="nehalem", features=frozenset({"sse4.2"}), vector_bits=128, machine="x86_64")
    with pytest.raises(UnsupportedTargetError, match="AVX2"):
        LLVMBackend().compile(MODULE, old)


def test_an_object_without_the_entry_is_refused() -> None:
    kernel = LLVMBackend().compile(MODULE, detect(), keep=False)
    with pytest.raises(CompileError, match="no function other"):
        LLVMBackend().load(replace(kernel, entry="other"))


def test_arguments_that_do_not_fit_are_refused() -> None:
    kernel = LLVMBackend().compile(MODULE, detect(), keep=False)
    x = torch.zeros(4)
    refused: list[tuple[list[torch.Tensor | float], str]] = [
        ([x, 1.0], "takes 3 arguments, not 2"),
        ([x.double(), 1.0, x], "should be f32 of rank 1"),
        ([torch.zeros(8)[::2], 1.0, x], "stride 1 along dimension 0"),
        ([x, x, x], "where a number is meant"),
        ([1.0, 1.0, x], "where a tensor is meant"),
    ]
    for arguments, message in refused:
        with pytest.raises(ArgumentError, match=message):
            words_of(kernel, arguments)

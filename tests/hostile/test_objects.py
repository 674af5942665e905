"""Compiled code in caches that others can write: it is never loaded, never waited for, and a reason is given."""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tessera import settings
from tessera.backend.contract import KernelObject
from tessera.backend.llvm import LLVMBackend
from tessera.backend.llvm.machine_code.library import cached_library, compile_text
from tessera.backend.llvm.machine_code.objects import CacheUnwritableWarning, ObjectCache
from tessera.errors import CacheUntrustedError
from tessera.ir.parsing import parse
from tessera.runtime.plans.calling import call
from tessera.system.private import CacheRefusedWarning, PrivateFolder
from tessera.target import detect
from tests import forked
from tests.hostile.users import COLLEAGUE, KINDS, STRANGER, as_user, give, needs_root, put, umask
from tests.unit.backend.llvm.test_objects import MODULE, TEXT

GENUINE = "define i64 @answer() {\n  ret i64 42\n}\n"
PLANTED = "define i64 @answer() {\n  ret i64 666\n}\n"


@pytest.fixture(scope="module")
def kernel() -> KernelObject:
    return LLVMBackend().compile(MODULE, detect(), keep=False)


@pytest.fixture(scope="module")
def planted() -> KernelObject:
    """A sound kernel of another program: one that adds where the genuine one multiplies."""
    return LLVMBackend().compile(parse(TEXT.replace("arith.mulf", "arith.addf")), detect(), keep=False)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def cached(folder: Path) -> KernelObject:
    return LLVMBackend(ObjectCache(folder)).compile(MODULE, detect())


def file_of(folder: Path) -> Path:
    cached(folder)
    (file,) = folder.iterdir()
    return file


def answer(folder: Path) -> int:
    library = cached_library("answer", GENUINE, folder)
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(library.address("answer"))())


Spoil = Callable[[Path], object]
SPOILT: dict[str, Spoil] = {
    "a group can write it": lambda path: path.chmod(0o660),
    "all can write it": lambda path: path.chmod(0o606),
    "it is a stranger's": give,
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("what", ["file", "folder"])
def test_an_object_that_somebody_else_can_have_written_is_compiled_anew(
    tmp_path: Path, kernel: KernelObject, planted: KernelObject, how: str, what: str
) -> None:
    if "stranger" in how and os.geteuid() != 0:
        pytest.skip("needs root, who can give files to another user")
    folder = tmp_path / "objects"
    file = file_of(folder)
    file.write_bytes(planted.to_bytes())
    spoilt = file if what == "file" else folder
    SPOILT[how](spoilt)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert cached(folder) == kernel
    (refusal,) = [str(each.message) for each in said if each.category is CacheRefusedWarning]
    assert "E_CACHE_UNTRUSTED" in refusal
    assert f"{spoilt} is not used" in refusal
    if what == "file":  # in a folder of this user's own it is replaced by a sound one
        assert KernelObject.from_bytes(file.read_bytes()) == kernel
        assert mode(file) == 0o600
    else:
        assert any(each.category is CacheUnwritableWarning for each in said)
        assert file.read_bytes() == planted.to_bytes()


@pytest.mark.parametrize("how", SPOILT)
def test_a_native_helper_that_somebody_else_can_have_written_is_compiled_anew(tmp_path: Path, how: str) -> None:
    if "stranger" in how and os.geteuid() != 0:
        pytest.skip("needs root, who can give files to another user")
    assert answer(tmp_path) == 42
    (file,) = tmp_path.glob("answer-*.o")
    code = compile_text(PLANTED)
    file.write_bytes(hashlib.sha256(code).digest() + code)
    assert answer(tmp_path) == 666, "a planted object runs where nobody else can have planted it"
    SPOILT[how](file)
    with pytest.warns(CacheRefusedWarning, match="E_CACHE_UNTRUSTED"):
        assert answer(tmp_path) == 42


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_and_not_waited_for(
    tmp_path: Path, kernel: KernelObject, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = file_of(tmp_path / "objects")
    put(file, kind)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert cached(tmp_path / "objects") == kernel
    refusal = next(str(each.message) for each in said if each.category is CacheRefusedWarning)
    assert f"it is a {kind}, where a file is meant" in refusal
    if kind == "folder":  # which no file can replace
        assert any(each.category is CacheUnwritableWarning for each in said)
    else:
        assert KernelObject.from_bytes(file.read_bytes()) == kernel


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path, kernel: KernelObject) -> None:
    file_of(tmp_path / "elsewhere")
    (tmp_path / "objects").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CacheRefusedWarning, match="objects is not used: it is a link, where a folder is meant"):
        assert PrivateFolder(tmp_path / "objects").find("name", 1) is None
    with settings.override(cache_dir=tmp_path):
        assert settings.current().objects_dir == tmp_path / f"objects-{os.geteuid()}"


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_folders_of_code_are_the_users_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        file = file_of(tmp_path / "home" / ".tessera" / "objects")
        PrivateFolder(tmp_path / "home" / ".tessera" / "triton").write("kernel.py", b"")
    assert mode(file) == 0o600
    assert mode(file.parent) == mode(file.parent.with_name("triton")) == 0o700
    assert mode(tmp_path / "home") & stat.S_IWOTH == 0


def test_a_folder_that_others_can_write_is_left_for_one_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    folder.chmod(0o777)
    with settings.override(cache_dir=tmp_path):
        own = settings.current().objects_dir
        assert own == tmp_path / f"objects-{os.geteuid()}"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert mode(file_of(own)) == 0o600
    assert mode(own) == 0o700
    assert not list(folder.iterdir())


@needs_root
def test_users_who_share_a_cache_folder_have_objects_of_their_own(meeting_place: Path) -> None:
    def place() -> str:
        with settings.override(cache_dir=meeting_place), warnings.catch_warnings():
            warnings.simplefilter("error")
            folder = settings.current().objects_dir
            PrivateFolder(folder).write("kernel", b"code")
            return folder.name

    assert as_user(COLLEAGUE, place) == "objects"
    assert as_user(STRANGER, place) == f"objects-{STRANGER}"
    assert place() == "objects-0"
    assert as_user(COLLEAGUE, place) == "objects"


@needs_root
def test_a_folder_that_waits_for_a_user_under_his_name_is_refused_with_the_reason(tmp_path: Path) -> None:
    for name in ("objects", "objects-0"):
        give(_made(tmp_path / name))
    with settings.override(cache_dir=tmp_path):
        folder = settings.current().objects_dir
    with pytest.raises(CacheUntrustedError, match=f"it belongs to user {STRANGER}"):
        PrivateFolder(folder).write("kernel", b"code")
    assert not list(folder.iterdir())


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


SCRIPT = """
import torch
from tessera import op
assert torch.equal(op.relu(torch.arange(-3.0, 3.0)).torch(), torch.relu(torch.arange(-3.0, 3.0)))
"""


@needs_root
def test_an_evaluation_amid_hostile_objects_is_right(cache_dir: Path) -> None:
    def run() -> str:
        done = forked.run(SCRIPT, warm=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "E_CACHE" not in run()
    files = sorted((cache_dir / "objects").iterdir())
    assert {mode(file) for file in files} == {0o600}
    for file in files:
        give(file)
    assert "E_CACHE_UNTRUSTED" in run()
    for file in files:
        put(file, "pipe")
    assert "it is a pipe" in run()
    assert "E_CACHE" not in run()


def test_the_genuine_kernel_multiplies(kernel: KernelObject, planted: KernelObject) -> None:
    x, product, total = torch.arange(21.0), torch.zeros(21), torch.zeros(21)
    call(LLVMBackend().load(kernel), [x, 3.0, product], workers=1)
    call(LLVMBackend().load(planted), [x, 3.0, total], workers=1)
    assert torch.equal(product, 3 * x)
    assert torch.equal(total, 3 + x)

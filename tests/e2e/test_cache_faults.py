"""Caches that are damaged, shared, full or out of reach: results stay right, and nothing that was kept is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tessera import Tensor, op, target
from tessera.backend.llvm import LLVMBackend
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.lazy.structures import interning, symbolic
from tests import forked
from tests.docs.snippets import ROOT
from tests.whole import examples, some

PROGRAM = """
import warnings
warnings.simplefilter("always")
import torch
from tessera import autotune, op
config = autotune(op.matmul, shapes=(48, 32, 40), method="model")
generator = torch.Generator().manual_seed(1)
a, b = torch.randn(48, 40, generator=generator), torch.randn(40, 32, generator=generator)
y = op.softmax(op.gelu(op.matmul(a, b))).torch()
torch.testing.assert_close(y, torch.softmax(torch.nn.functional.gelu(a @ b), -1), rtol=1e-4, atol=1e-5)
print("tile", config.schedule["tile"], "sum", float(y.double().sum()))
"""
"""Uses every cache: tunes, compiles, runs, and compares with torch."""


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"


def environment(cache: Path) -> dict[str, str]:
    """That of a process whose caches are in a folder."""
    return os.environ | {"TESSERA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src")}


def start(cache: Path, limit: int | None = None) -> subprocess.Popen[str]:
    """The program in a process of its own, whose files may not grow past `limit` bytes."""
    pipe = subprocess.PIPE
    program = PROGRAM if limit is None else LIMITED.format(limit) + PROGRAM
    command = [sys.executable, "-B", "-c", program]
    return subprocess.Popen(command, env=environment(cache), stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process printed, and what it complained of. Asserts that it ended well."""
    output, complaints = process.communicate(timeout=300)
    return well(process.returncode, output, complaints)


def well(status: int, output: str, complaints: str) -> tuple[str, str]:
    """The last two, of a process that ended well, which is asserted."""
    assert status == 0, complaints
    assert "Exception ignored" not in complaints
    return output, complaints


def run(cache: Path, limit: int | None = None) -> tuple[str, str]:
    """What the program prints, and what it complains of; files of `start` may not grow past `limit` bytes."""
    if limit is not None:
        return finish(start(cache, limit))
    done = forked.run(PROGRAM, environment=environment(cache), timeout=300, warm=True)
    return well(done.returncode, done.stdout, done.stderr)


def contents(folder: Path) -> dict[Path, bytes]:
    """All files below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[Path, bytes]]:
    """What the program prints, and the files of the cache that it filled, by their place in it."""
    folder = tmp_path_factory.mktemp("filled")
    run(folder)
    # What the first process tuned, the second compiles: from then on everything is there.
    output, complaints = run(folder)
    assert "E_CACHE" not in complaints
    return output, {path.relative_to(folder): data for path, data in contents(folder).items()}


@pytest.fixture
def cache(tmp_path: Path, filled: tuple[str, dict[Path, bytes]]) -> Path:
    """A copy of the filled cache."""
    for path, data in filled[1].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return tmp_path


def test_a_second_process_finds_everything(cache: Path, filled: tuple[str, dict[Path, bytes]]) -> None:
    before = {path: path.stat().st_mtime_ns for path in contents(cache) if path.suffix in (".kernel", ".o")}
    assert len(before) >= 3
    assert run(cache)[0] == filled[0]
    assert {path: path.stat().st_mtime_ns for path in contents(cache) if path.suffix in (".kernel", ".o")} == before


@pytest.mark.parametrize(
    "damage", some([b"", b"\x7fELF and then nonsense", None]), ids=some(["empty", "nonsense", "cut"])
)
def test_damaged_files_cost_time_but_no_result(
    cache: Path, filled: tuple[str, dict[Path, bytes]], damage: bytes | None
) -> None:
    objects = [path for path in contents(cache) if path.suffix in (".kernel", ".o")]
    for path, data in contents(cache).items():
        path.write_bytes(data[: len(data) // 2] if damage is None else damage)
    output, _ = run(cache)
    assert output.split("sum")[1] == filled[0].split("sum")[1]
    # The kernel of the tuned schedule is not among them: that entry was damaged as well.
    repaired = [path for path in objects if path.read_bytes() == filled[1][path.relative_to(cache)]]
    assert len(repaired) >= len(objects) - 1


def test_files_of_other_versions_and_left_overs_are_let_be(cache: Path, filled: tuple[str, dict[Path, bytes]]) -> None:
    strangers = [
        cache / "objects" / f"{'0' * 40}.kernel",
        cache / "objects" / f"{'1' * 40}.9-9.tmp",
        cache / "from-the-future.json",
        cache / "notes.txt",
    ]
    for path in strangers:
        path.write_bytes(b"another version's")
    assert run(cache)[0] == filled[0]
    assert all(path.read_bytes() == b"another version's" for path in strangers)


@pytest.mark.parametrize("place", ["below a file", "in a folder of the kernel"])
def test_a_cache_that_cannot_be_written_is_said_once_and_does_not_matter(
    tmp_path: Path, filled: tuple[str, dict[Path, bytes]], place: str
) -> None:
    (tmp_path / "file").write_text("kept")
    folder = tmp_path / "file" / "cache" if place == "below a file" else Path("/proc/self/cache")
    output, complaints = run(folder)
    assert output == filled[0]
    assert "E_CACHE_IO" in complaints
    assert "TESSERA_CACHE_DIR" in complaints
    assert complaints.count("compiled kernels cannot be kept") == 1
    assert (tmp_path / "file").read_text() == "kept"


def test_a_full_disk_keeps_what_was_there(cache: Path, filled: tuple[str, dict[Path, bytes]]) -> None:
    kernels = [path for path in contents(cache) if path.suffix == ".kernel"]
    kernels[0].unlink()
    before = contents(cache)
    output, complaints = run(cache, limit=64)
    assert output == filled[0]
    assert "E_CACHE_IO" in complaints
    after = contents(cache)
    assert {path: after[path] for path in before} == before
    assert not [path for path in after if path.suffix == ".tmp"]


def test_a_disk_that_is_full_from_the_start_gives_right_results(
    tmp_path: Path, filled: tuple[str, dict[Path, bytes]]
) -> None:
    output, complaints = run(tmp_path, limit=0)
    assert output == filled[0]
    assert "E_CACHE_IO" in complaints
    assert not any(contents(tmp_path).values())


def test_processes_that_fill_a_cache_at_once_agree(tmp_path: Path, filled: tuple[str, dict[Path, bytes]]) -> None:
    for process in [start(tmp_path) for _ in range(examples(2, 3))]:
        output, complaints = finish(process)
        assert output == filled[0]
        assert "E_CACHE" not in complaints
    objects = {
        path.relative_to(tmp_path): data for path, data in contents(tmp_path).items() if path.suffix == ".kernel"
    }
    assert objects.items() <= filled[1].items()
    assert len(objects) == 2  # the product with gelu, and softmax
    assert not list(tmp_path.rglob("*.tmp"))


# -- two kinds of CPU ------------------------------------------------------------------------------------------------


@pytest.fixture
def own_compiler(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and no kernels in memory before and after."""

    def forget() -> None:
        compilers.kernel_compiler.cache_clear()
        interning.forget_structures(keep_plans=False)
        symbolic._forms.clear()

    forget()
    yield cache_dir / "objects"
    monkeypatch.undo()
    forget()


def product() -> Tensor:
    return op.gelu(op.matmul(torch.ones(20, 30), torch.ones(30, 40)))


def test_a_home_shared_by_two_kinds_of_cpu_serves_both(own_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = target.detect()
    lesser = frozenset(feature for feature in here.features if not feature.startswith("avx512"))
    older = replace(here, arch="haswell", features=lesser, vector_bits=256, vector_registers=16)
    if lesser == here.features:
        pytest.skip("this CPU has no lesser kind that it can imitate: it has no AVX-512")
    expected = torch.nn.functional.gelu(torch.full((20, 40), 30.0))
    torch.testing.assert_close(product().torch(), expected)
    own = contents(own_compiler)
    with monkeypatch.context() as patch:
        compiler = DeviceCompiler(older, LLVMBackend())
        patch.setattr(compilers, "kernel_compiler", lambda: compiler)
        interning.forget_structures(keep_plans=False)
        symbolic._forms.clear()
        torch.testing.assert_close(product().torch(), expected)
        assert "zmm" not in product().inspect("target")
    both = contents(own_compiler)
    assert len([path for path in both if path.suffix == ".kernel"]) == 2 * len(
        [path for path in own if path.suffix == ".kernel"]
    )
    assert {path: both[path] for path in own} == own

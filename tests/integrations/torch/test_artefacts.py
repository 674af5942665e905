"""Programs in files: what `aot_compile` writes, `load` runs in a process without a compiler, and refuses elsewhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import tessera.torch
from tessera.errors import ArtefactError
from tessera.target import cpu
from tests import forked


class Model(nn.Module):
    """Products, a softmax, an operator of torch's in the middle, a buffer that counts calls, several results."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 24), nn.Linear(24, 5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> dict[str, object]:
        self.count.add_(1)
        hidden = torch.nn.functional.gelu(self.first(x))
        summed = torch.logcumsumexp(hidden, -1)
        y = torch.softmax(self.second(summed), -1) * x.shape[0]
        return {"y": y if scale is None else y * scale, "parts": (x[:, :2].t(), None, 3), "count": self.count * 2}


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def program(model: Model) -> ExportedProgram:
    return export(model, (torch.randn(4, 8),), dynamic_shapes={"x": {0: Dim("batch", min=2, max=64)}})


@pytest.fixture(scope="module")
def path(program: ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("artefact") / "model.tessera"
    tessera.torch.aot_compile(program, made, shapes=[[(4, 8)], [(7, 8)]])
    return made


@pytest.fixture
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_loaded_program_gives_the_bits_of_the_compiled_model(model: Model, path: Path, fresh: None) -> None:
    found = tessera.torch.load(path)
    compiled = torch.compile(model, backend="tessera", dynamic=True)
    for calls, rows in enumerate((4, 7), start=1):
        x = torch.randn(rows, 8)
        result = found(x)
        with torch.no_grad():
            assert torch.equal(result["y"], compiled(x)["y"])
        assert result["y"].stride() == (5, 1)
        transposed, nothing, three = result["parts"]
        assert torch.equal(transposed, x[:, :2].t())
        assert (nothing, three) == (None, 3)
        assert result["count"] == 2 * calls  # its buffers are its own


def test_arguments_may_lie_otherwise_than_they_were_exported(model: Model, path: Path) -> None:
    x = torch.randn(8, 4).t()
    torch.testing.assert_close(tessera.torch.load(path)(x)["y"], model(x)["y"].detach())


SCRIPT = """
import hashlib, sys
import torch
import tessera.torch
found = tessera.torch.load(sys.argv[1])
y = found(torch.linspace(-1, 1, 32).view(4, 8))["y"]
print([name for name in ("llvmlite", "xdsl", "torch._dynamo") if name in sys.modules])
print(hashlib.sha256(y.numpy().tobytes()).hexdigest())
"""


class Striding(nn.Module):
    """Constants with strides of 0, with gaps, and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("repeated", torch.randn(1, 8).expand(4, 8))
        self.register_buffer("gaps", torch.randn(4, 20)[:, 1:17:2])
        self.register_buffer("transposed", torch.randn(8, 4).t())

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.repeated) * self.gaps - self.transposed  # type: ignore[operator]


def test_constants_lie_as_they_were_compiled(tmp_path: Path) -> None:
    model, x = Striding(), torch.randn(4, 8)
    tessera.torch.aot_compile(export(model, (x,)), tmp_path / "striding")
    torch.testing.assert_close(tessera.torch.load(tmp_path / "striding")(x), model(x))


def test_another_process_runs_it_without_compiler_and_cache(path: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.touch()
    printed = run(SCRIPT, str(path), cache=nowhere / "cache")
    y = tessera.torch.load(path)(torch.linspace(-1, 1, 32).view(4, 8))["y"]
    assert printed == ["[]", hashlib.sha256(y.numpy().tobytes()).hexdigest()]


def run(script: str, *arguments: str, cache: Path) -> list[str]:
    """What a script prints in a process of its own."""
    environment = {**os.environ, "TESSERA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (torch.zeros(65, 8), r"x is \[65, 8\]: \w+ is 65, exported for 2 to 64"),
        (
            torch.zeros(5, 8),
            r"shapes \[\[5, 8\]\] were not compiled\n.*\nhint: compiled are \[\[4, 8\]\], \[\[7, 8\]\]",
        ),
        (torch.zeros(4, 9), r"x is \[4, 9\], and was exported for \[\w+, 8\]"),
        (torch.zeros(4, 8, dtype=torch.float64), "x is of float64, and was exported for float32"),
        (3, "x is no dense tensor on the CPU"),
    ],
)
def test_other_arguments_are_refused_with_what_differs(path: Path, argument: object, message: str) -> None:
    with pytest.raises(ArtefactError, match=message) as raised:
        tessera.torch.load(path)(argument)
    assert raised.value.code == "E_ARTEFACT"


def test_arguments_of_another_structure_are_refused(path: Path) -> None:
    with pytest.raises(ArtefactError, match="put together otherwise"):
        tessera.torch.load(path)(torch.zeros(4, 8), torch.zeros(4, 8))


def test_another_cpu_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_flags", frozenset)
    monkeypatch.setattr(cpu, "detect", lambda: cpu.describe("other", frozenset(), frozenset((0,)), "", "", Path(), ""))
    with pytest.raises(ArtefactError, match=r"was compiled for .*; this CPU lacks .*\n.*\nhint: compile it on this"):
        tessera.torch.load(path)


def test_another_version_of_torch_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "1.0")
    with pytest.raises(ArtefactError, match=r"was made for torch 2.*, and here is 1\.0"):
        tessera.torch.load(path)


@pytest.mark.parametrize("place", [0, 100, -100])
def test_a_damaged_file_is_refused(path: Path, tmp_path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    damaged = tmp_path / "damaged"
    damaged.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"its first bytes differ|its digest does not match"):
        tessera.torch.load(damaged)


def test_shapes_that_the_program_was_not_exported_for_are_refused(program: ExportedProgram, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"the shape \(4, 9\), where the exported program has"):
        tessera.torch.aot_compile(program, tmp_path / "none", shapes=[[(4, 9)]])
    assert not list(tmp_path.iterdir())


COUNTED = """
import sys
import torch
from tessera.backend.llvm.machine_code import engine
import tessera.torch
made = []
for name in ("compile_object", "compile_helper"):
    inner = getattr(engine, name)
    setattr(engine, name, lambda *given, inner=inner: (made.append(1), inner(*given))[1])
torch.manual_seed(0)
loss = torch.compile(torch.nn.Linear(8, 16), backend="tessera")(torch.randn(3, 8)).tanh().sum()
loss.backward()
print(len(made))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)}
    first, second = (forked.run(COUNTED, environment=environment, timeout=300) for _ in range(2))
    assert int(first.stdout) > 1, first.stderr
    assert int(second.stdout) == 0, second.stderr

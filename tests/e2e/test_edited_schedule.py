"""`tessera opt | tessera run` on Schedule IR that a person edited: other knobs are another kernel of the same results,
another region computes something else, and what is wrong is told with its line.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from tessera import Tensor, op
from tessera.cli.main import main

SOURCE = Path(__file__).parents[2] / "src"
M, N, K = 40, 50, 30


def tessera(*arguments: str) -> int:
    """Runs a command line in this process; gives its exit status."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


class Files:
    """A product with bias and relu as Schedule IR, in a file, with its operands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "schedule.mlir"
        random = torch.Generator().manual_seed(0)
        self.a, self.b, self.bias = (torch.randn(*shape, generator=random) for shape in ((M, K), (K, N), (N,)))
        self.text = op.relu(op.matmul(self.a, self.b) + self.bias).inspect("schedule")
        for name, operand in ("a", self.a), ("b", self.b.T), ("bias", self.bias):
            numpy.save(folder / f"{name}.npy", operand.numpy())

    def edited(self, *edits: tuple[str, str]) -> None:
        """Writes the text with edits."""
        text: str = self.text
        for before, after in edits:
            assert text.count(before) == 1, f"{before} in {text}"
            text = text.replace(before, after)
        self.file.write_text(text)

    def lowered(self) -> str:
        """The Tile IR of the file."""
        written = self.folder / "tile.mlir"
        assert tessera("opt", str(self.file), "--pass-pipeline=lower-schedule", "-o", str(written)) == 0
        return written.read_text()

    def result(self) -> torch.Tensor:
        """What the kernel of the file computes."""
        compiled, result = self.folder / "kernel", self.folder / "y.npy"
        emitted = ("--pass-pipeline=lower-schedule", "--emit=object", "-o", str(compiled))
        assert tessera("opt", str(self.file), *emitted) == 0
        assert tessera("run", str(compiled), *self.operands, "-o", str(result)) == 0
        return torch.from_numpy(numpy.load(result))

    @property
    def operands(self) -> list[str]:
        """What `tessera run` is told of them."""
        return [*(f"-a{self.folder / name}.npy" for name in ("a", "b", "bias")), f"-a{M}x{N}"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def knob(text: str, name: str) -> str:
    """`name = value` as a knob stands in a text."""
    start = text.index(f" {name} = ", text.index("knobs = {")) + 1
    end = text.index("]", start) + 1 if text[start:].split(" = ")[1][0] == "[" else text.index(",", start)
    return text[start:end]


def test_edited_knobs_are_another_kernel_with_the_same_results(files: Files) -> None:
    files.edited()
    usual, expected = files.lowered(), torch.relu(files.a @ files.b + files.bias)
    torch.testing.assert_close(files.result(), expected, rtol=1e-4, atol=1e-5)
    micro = knob(files.text, "micro")
    columns = micro.removesuffix("]").split(", ")[1]
    files.edited((micro, f"micro = [2 : i64, {columns}]"), (knob(files.text, "unroll"), "unroll = 2 : i64"))
    assert files.lowered() != usual
    torch.testing.assert_close(files.result(), expected, rtol=1e-4, atol=1e-5)


def test_an_edited_region_computes_what_it_says(files: Files) -> None:
    files.edited(("tessera.schedule.maximum", "tessera.schedule.minimum"))
    expected = torch.minimum(files.a @ files.b + files.bias, torch.zeros(()))
    torch.testing.assert_close(files.result(), expected, rtol=1e-4, atol=1e-5)


def test_an_edited_prologue_is_computed_before_the_product(files: Files) -> None:
    line = next(line for line in files.text.splitlines() if "accumulate" in line)
    squared = '    %squared = "tessera.schedule.mul"(%4, %4) : (f32, f32) -> f32\n'
    files.edited((line, squared + line.replace("(%4,", "(%squared,")))
    expected = torch.relu((files.a * files.a) @ files.b + files.bias)
    torch.testing.assert_close(files.result(), expected, rtol=1e-4, atol=1e-5)


def test_opt_and_run_in_a_pipe(files: Files) -> None:
    files.edited(("tessera.schedule.maximum", "tessera.schedule.minimum"))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    program = f"{shlex.quote(sys.executable)} -m tessera"
    opt = f"{program} opt {files.file} --pass-pipeline lower-schedule --emit=object"
    line = f"{opt} | {program} run - {' '.join(files.operands)}"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, env=environment, check=True)
    first = torch.minimum(files.a @ files.b + files.bias, torch.zeros(()))[0, 0]
    assert f"output 0: f32[{M}x{N}] = {first:.4g}"[:-1] in ran.stdout.decode()


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


QUERIES, KEYS, IMAGE = drawn(64, 32), drawn(64, 32), drawn(3, 9, 9)
SCALE = 32**-0.5
WEIGHTS = torch.exp(QUERIES - QUERIES.amax(-1, keepdim=True))


def attended() -> torch.Tensor:
    hidden = torch.ones(64, 64).tril() == 0
    return torch.softmax((QUERIES @ KEYS.T * SCALE).masked_fill(hidden, -torch.inf), -1) @ KEYS


FAMILIES: dict[str, tuple[Callable[[], Tensor], list[torch.Tensor | float], tuple[str, str], torch.Tensor]] = {
    "rows": (
        lambda: op.softmax(QUERIES),
        [QUERIES],
        ("schedule.mul", "schedule.add"),
        WEIGHTS + 1 / WEIGHTS.sum(-1, keepdim=True),
    ),
    "columns": (lambda: op.sum(KEYS, 0), [KEYS], ('kind = "add"', 'kind = "max"'), KEYS.amax(0)),
    "windows": (
        lambda: op.max_pool2d(IMAGE[None], 3, stride=2),
        [IMAGE],
        ('kind = "max"', 'kind = "min"'),
        -torch.nn.functional.max_pool2d(-IMAGE, 3, 2),
    ),
    "attention": (
        lambda: op.flash_attention(QUERIES, KEYS, KEYS),
        [QUERIES, KEYS, KEYS.T, SCALE],
        ("causal = false", "causal = true"),
        attended(),
    ),
}
"""An expression, the arguments of its kernel but the result, an edit, and what it computes then."""


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_of_other_families_compute_what_an_edit_says(family: str, tmp_path: Path) -> None:
    build, operands, (before, after), expected = FAMILIES[family]
    text = build().inspect("schedule")
    assert before in text, text
    (tmp_path / "schedule.mlir").write_text(text.replace(before, after))
    told = []
    for number, operand in enumerate(operands):
        if isinstance(operand, torch.Tensor):
            numpy.save(tmp_path / f"{number}.npy", operand.numpy())
        told.append(f"-a{tmp_path / f'{number}.npy'}" if isinstance(operand, torch.Tensor) else f"-a{operand}")
    compiled, result = tmp_path / "kernel", tmp_path / "y.npy"
    emitted = ("--pass-pipeline=lower-schedule", "--emit=object", "-o", str(compiled))
    assert tessera("opt", str(tmp_path / "schedule.mlir"), *emitted) == 0
    shape = "x".join(map(str, expected.shape))
    assert tessera("run", str(compiled), *told, f"-a{shape}", "-o", str(result)) == 0
    torch.testing.assert_close(torch.from_numpy(numpy.load(result)), expected, rtol=1e-4, atol=1e-5)


def test_a_mistake_is_told_with_its_line(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.edited((knob(files.text, "micro"), "micro = [2 : i64, 17 : i64]"))
    assert tessera("opt", str(files.file), "--pass-pipeline=lower-schedule") == 1
    number = next(place for place, line in enumerate(files.file.read_text().splitlines(), 1) if "micro" in line)
    said = capsys.readouterr().err
    assert said.startswith(f"E_SCHEDULE_ILLEGAL: {files.file}:{number}:")
    assert "hint: rule" in said


def test_schedule_ir_is_no_object_before_it_is_lowered(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.edited()
    assert tessera("opt", str(files.file), "--emit=object") == 1
    assert "hint: --pass-pipeline lower-schedule" in capsys.readouterr().err

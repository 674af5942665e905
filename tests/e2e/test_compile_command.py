"""`tessera compile`: an operator for a GPU that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.cli.main import main


def run(*arguments: str) -> int:
    """The exit status of `tessera compile`."""
    with pytest.raises(SystemExit) as end:
        main(["compile", *arguments])
    return int(end.value.code or 0)


def test_a_product_for_hopper(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    assert run("matmul", "--shape", "1024,1024,1024", "--dtype", "bf16", "--target", "sm90", "--source") == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "wgmma" in rows["instructions"]
    assert rows["spills"].split()[1] == "0"
    assert int(rows["registers"].split()[1]) > 0
    assert "@triton.jit" in text
    assert "tl.dot(" in text


def test_attention_for_hopper(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    assert run("flash_attention", "--shape", "4,16,4096,128", "--dtype", "bf16", "--target", "sm90") == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "wgmma" in rows["instructions"]
    assert rows["spills"].split()[1] == "0"
    shapes = ["--shape", "8,512,64", "--shape", "2,700,64", "--shape", "2,700,64"]
    assert run("flash_attention", *shapes, "--dtype", "fp16", "--target", "sm80") == 0
    assert "mma.sync" in capsys.readouterr().out


def test_a_pinned_schedule_and_what_becomes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    pins = (
        "tile=(128,128,64), warps=4, a_indexing='host_descriptor', b_indexing='host_descriptor', warp_specialize=True,"
        " out_indexing='pointer', grid='flat', epilogue_parts=1"
    )
    product = ("matmul", "--shape", "4096,4096,4096", "--dtype", "bf16", "--target", "sm90")
    assert run(*product, "--schedule", pins) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert "warp_specialize=True" in rows["schedule"]
    assert "max_registers" not in rows["schedule"]  # knobs at their defaults are left out
    assert "cp.async.bulk.tensor" in rows["instructions"]
    assert "setmaxnreg" in rows["instructions"]


def test_a_split_product_is_two_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    tall = ("matmul", "--shape", "64,64,8192", "--dtype", "bf16", "--target", "sm90")
    assert run(*tall, "--schedule", "split_k=8") == 0
    text = capsys.readouterr().out
    assert text.count(" for H100") == 2
    assert "matmul_0_parts for H100" in text


def test_a_pin_that_the_default_forbids_changes_what_stands_in_its_way(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    product = ("matmul", "--shape", "4096,4096,4096", "--dtype", "bf16", "--target", "sm90")
    assert run(*product, "--schedule", "warp_specialize=True") == 0
    schedule = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  schedule"))
    assert "warp_specialize=True" in schedule
    assert "warps=4" in schedule


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("tile=(128,256,128), pipeline_depth=4", "rule shared-memory: the tiles in flight"),
        ("warp_specialize=True, a_indexing='pointer'", "rule warp-specialization: loads get warps of their own"),
        ("wrps=4", "no kernel has the knob 'wrps'"),
        ("tile", "'tile' is no schedule"),
    ],
)
def test_a_schedule_that_is_refused_names_the_rule(
    schedule: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    product = ("matmul", "--shape", "4096,4096,4096", "--dtype", "bf16", "--target", "sm90")
    assert run(*product, "--schedule", schedule) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("matmull", "--shape", "8,8,8", "--target", "sm90"), "no operator is called 'matmull'"),
        (("matmul", "--shape", "8,8,8", "--target", "sm1"), "'sm1' is no known GPU"),
        (("matmul", "--shape", "8x8", "--target", "sm90"), "--shape 8x8 is no list of extents"),
        (
            ("flash_attention", "--shape", "4,8", "--shape", "4,8", "--target", "sm90"),
            "missing a required argument: 'v'",
        ),
        (("matmul", "--shape", "8,8", "--target", "sm90"), "a matrix product has the problem size (M, N, K)"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 1
    assert message in capsys.readouterr().err


def test_why_this_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    assert run("softmax", "--shape", "4096,1024", "--dtype", "bf16", "--target", "sm90", "--explain") == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "bound by" in rows["estimate"]
    assert "why" in rows
    assert "(Triton 3." in rows["block"]
    assert "bytes a multiprocessor" in text


def test_tf32_is_asked_for_as_a_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    product = ("matmul", "--shape", "512,512,512", "--target", "sm90", "--candidates", "1")
    assert run(*product, "--dtype", "tf32") == 0
    assert "tf32 products" in capsys.readouterr().out
    assert run(*product, "--dtype", "fp32") == 0
    assert "tf32 products" not in capsys.readouterr().out


def test_rows_that_16_bytes_divide_but_16_elements_do_not_are_copied_asynchronously(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    assert run("matmul", "--shape", "1000,1000,1000", "--dtype", "bf16", "--target", "sm90", "--candidates", "1") == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert "cp.async" in rows["instructions"]
    assert rows["spills"].split()[1] == "0"


KERNELS = """
import beside
from tessera import op

@op.kernel
def gated(a, b):
    return op.gelu(a @ b) * beside.SCALE

number = 3

if __name__ == "__main__":
    raise SystemExit("run, not imported")
"""


def test_a_kernel_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    file = tmp_path / "mine.py"
    file.write_text(KERNELS)
    (tmp_path / "beside.py").write_text("SCALE = 0.5\n")
    shapes = ("--shape", "128,256", "--shape", "256,64", "--dtype", "bf16", "--target", "sm90a", "--candidates", "0")
    assert run(f"{file}:gated", *shapes) == 0
    text = capsys.readouterr().out
    assert "gelu" in text.splitlines()[0]
    assert " for H100" in text
    assert "registers" in text


def test_a_kernel_that_a_file_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(KERNELS)
    (tmp_path / "beside.py").write_text("SCALE = 0.5\n")
    for name, said in (
        (f"{file}:gate", "has no function 'gate'"),
        (f"{file}:number", "its kernels are gated"),
        (f"{tmp_path}/none.py:gated", "no such file"),
        ("gated", "no operator is called 'gated'"),
    ):
        assert run(name, "--shape", "8,8", "--target", "sm90") == 1
        assert said in capsys.readouterr().err

"""Kernels in files: what `export` writes, `load_kernel` runs without a compiler, and refuses for other calls."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import tessera.torch
from tessera import op
from tessera.errors import ArgumentError, ArtefactError, MissingArgumentError

WEIGHT = torch.arange(20.0).reshape(4, 5)
PACKED = op.constant(WEIGHT)


@op.kernel
def layer(x: Any, bias: Any = None, scale: float = 1.0, *, activation: str = "relu") -> Any:
    y = x @ PACKED
    if bias is not None:
        y = y + bias
    return (op.relu(y) if activation == "relu" else op.tanh(y)) * scale


@op.kernel
def several(x: Any, y: Any) -> Any:
    return x + 1, y, op.tensor([1.0, 2.0])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kernel") / "layer.kernel"
    layer.export(made, [[(3, 4)], [(6, 4), (5,), 0.5], [torch.zeros(3, 4), None, 0.5]])
    return made


def test_a_loaded_kernel_gives_the_bits_of_the_function(path: Path) -> None:
    found = tessera.load_kernel(path)
    x, bias = torch.randn(6, 4), torch.randn(5)
    assert torch.equal(found(x, bias, 2.5).torch(), layer(x, bias, 2.5).torch())
    assert torch.equal(found(x, scale=2.5, bias=bias).torch(), layer(x, bias, 2.5).torch())
    assert torch.equal(found(x[:3]).torch(), layer(x[:3]).torch())
    assert torch.equal(found(x[:3], None, 0.5).torch(), layer(x[:3], None, 0.5).torch())


def test_operands_may_lie_otherwise_be_arrays_or_be_pending(path: Path) -> None:
    found = tessera.load_kernel(path)
    x = torch.randn(4, 3)
    expected = layer(x.T.contiguous()).torch()
    for operand in (x.T, x.T.numpy(), op.tensor(x).T, op.tensor(x.T.contiguous()) * 1):
        assert torch.equal(found(operand).torch(), expected)


def test_results_may_be_operands_and_tensors_of_the_functions_own(tmp_path: Path) -> None:
    several(torch.zeros(2, 3), torch.zeros(3))
    several.export(tmp_path / "several")  # for the calls that there were
    x, y = torch.ones(2, 3), torch.arange(3.0)
    first, second, third = tessera.load_kernel(tmp_path / "several")(x, y)
    assert first.tolist() == [[2.0] * 3] * 2
    assert second.tolist() == [0.0, 1.0, 2.0]
    assert third.tolist() == [1.0, 2.0]


def test_other_calls_are_refused_with_those_that_there_are(path: Path) -> None:
    found = tessera.load_kernel(path)
    with pytest.raises(ArtefactError, match=r"not exported for \(fp32\[7, 4\]\)") as refused:
        found(torch.zeros(7, 4))
    assert "(fp32[3, 4]); (fp32[6, 4], fp32[5], a number of fp32)" in str(refused.value)
    with pytest.raises(ArtefactError, match="fp64"):
        found(torch.zeros(3, 4, dtype=torch.float64))
    with pytest.raises(ArtefactError, match="'tanh'"):
        found(torch.zeros(3, 4), activation="tanh")
    with pytest.raises(ArgumentError, match="no free parameter 'activated'"):
        found(torch.zeros(3, 4), activated=True)
    with pytest.raises(MissingArgumentError, match="without 'x'"):
        found(bias=torch.zeros(5))
    with pytest.raises(ArgumentError, match="takes 3 operands"):
        found(torch.zeros(3, 4), None, 1.0, 2.0)


def test_what_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "made"

    class Model:
        @op.kernel
        def forward(self, x: Any) -> Any:
            return x * 2

    with pytest.raises(ArtefactError, match="has not been called yet"):
        op.kernel(lambda x: x).export(made)
    with pytest.raises(ArtefactError, match="a method of a Model"):
        Model.forward.export(made, [[Model(), (3,)]])
    with pytest.raises(ArtefactError, match="an operand is a constant"):
        op.kernel(lambda x, w: x @ w).export(made, [[(3, 4), op.constant(WEIGHT)]])
    with pytest.raises(ArtefactError, match="on interpreter"):
        op.kernel(lambda x: x + 1).export(made, [[op.ones(3).to("interpreter")]])
    assert not made.exists()


def test_files_of_kernels_and_of_programs_are_told_apart(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"no program of torch[\s\S]*tessera\.load_kernel"):
        tessera.torch.load(path)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArtefactError, match="cut short or altered"):
        tessera.load_kernel(damaged)


SCRIPT = """
import pickle, sys
layer, x = pickle.loads(bytes.fromhex(sys.argv[1]))
assert x.abs().shape == (3, 4)
print(layer(x).numpy().sum())
print(sorted({"llvmlite", "xdsl"} & set(sys.modules)))
"""


def test_another_process_runs_it_without_a_compiler(path: Path, tmp_path: Path) -> None:
    """It gets the kernel as a pickle, which names the file, and has neither the function nor a cache. A tensor beside
    it is a whole one there, though the process imports nothing of Tessera itself.
    """
    pickled = pickle.dumps((tessera.load_kernel(path), op.ones((3, 4)))).hex()
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, pickled],
        env={**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expected = float(numpy.ones((3, 4), "f4").dot(WEIGHT.numpy()).sum())
    assert done.stdout.split("\n")[:2] == [str(expected), "[]"], done.stderr
    assert not list(tmp_path.iterdir())

"""Streams of the device "interpreter": GPU kernels, run by Triton's interpreter on a worker thread."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tessera import op, stream
from tessera.errors import DeviceError
from tests import forked

PROGRAM = """
import torch
from tessera import op, stream
from tests.unit.runtime.streams.support import held

s = stream.create(device="interpreter")
a, b = torch.randn(17, 33), torch.randn(33, 5)
first, second = op.tensor(a, device="interpreter"), op.tensor(b, device="interpreter")
with held(s):
    y = op.matmul(first, second, stream=s)
    z = op.relu(y + 1.0, stream=s)
    assert not s.query()
error = (z.torch().double() - (a.double() @ b.double() + 1).relu()).abs().max().item()
print(error < 1e-4)
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_of_a_gpu_run_on_a_stream() -> None:
    # In a process of its own, since Triton interprets only where it has not compiled.
    done = forked.run(PROGRAM, environment=forked.importing_tests(), timeout=300, warm=True)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_streams_and_operands_of_different_devices_are_refused() -> None:
    cpu, interpreted = stream.create(name="plain"), stream.create(name="checked", device="interpreter")
    a = torch.randn(3)
    with pytest.raises(DeviceError, match=r"'plain' is on cpu, and the operands are on interpreter"):
        op.exp(op.tensor(a, device="interpreter"), stream=cpu)
    with pytest.raises(DeviceError, match=r"'checked' is on interpreter, and the operands are on cpu"):
        op.exp(a, stream=interpreted)

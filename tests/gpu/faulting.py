"""A program that makes a kernel write far outside of all memory, and prints what the driver says of it."""

from __future__ import annotations

import os
import sys

import torch

from tessera.errors import DeviceFaultError
from tessera.runtime.devices.device import driver_of
from tests.unit.runtime.cuda.offline_kernels import compile_source


def main() -> int:
    """Returns 0 where the fault was reported, both at once and afterwards, as what it is."""
    device = driver_of("cuda:0")
    loaded = device.load(compile_source("out_of_bounds", device.target))
    memory = torch.zeros(32, device="cuda")
    device.launch(loaded, (1, 1, 1), (memory.data_ptr(), 1 << 44), device.stream())
    for _ in range(2):
        try:
            device.synchronize(device.stream())
        except DeviceFaultError as fault:
            print(f"{fault.code}: {fault.message}")
        else:
            return 1
    return 0


if __name__ == "__main__":
    outcome = main()
    sys.stdout.flush()
    os._exit(outcome)  # what libraries do at exit with a lost context is not what is tested

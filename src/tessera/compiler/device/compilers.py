"""The compilers of this process: one for its CPU, and one for each GPU that is used."""

from __future__ import annotations

from functools import cache

from tessera import target
from tessera.backend.registry import backend_of
from tessera.compiler.device.compiler import DeviceCompiler, TunedSchedules
from tessera.lazy.devices import CPU
from tessera.runtime.devices.device import driver_of


class _Source:
    """What compilers ask for schedules before they take their own; `pipeline.py` has them ask the tuner."""

    asked: TunedSchedules | None = None


_source = _Source()


@cache
def kernel_compiler() -> DeviceCompiler:
    """The compiler for this machine's CPU. Raises UnsupportedTargetError where kernels cannot be generated for it."""
    machine = target.detect()
    machine.require_supported()
    compiler = DeviceCompiler(machine, backend_of(CPU))
    compiler.tuned = _source.asked
    return compiler


_gpu_compilers: dict[str, DeviceCompiler] = {}


def gpu_compiler(device: str) -> DeviceCompiler:
    """The compiler for a GPU, or for the interpreter. Raises what `runtime.device.driver_of` raises."""
    driver = driver_of(device)
    known = _gpu_compilers.get(device)
    if known is None or known.driver is not driver:
        known = _gpu_compilers[device] = DeviceCompiler(driver.target, backend_of(device), driver)
        known.tuned = _source.asked
    return known


def compiler_of(device: str | None) -> DeviceCompiler:
    """The compiler for a device; None is the CPU."""
    return kernel_compiler() if device in (None, CPU) else gpu_compiler(str(device))


def ask_for_schedules(source: TunedSchedules) -> None:
    """Has all compilers, those that exist and those to come, ask for the schedules of kernels."""
    _source.asked = source
    if kernel_compiler.cache_info().currsize:
        kernel_compiler().tuned = source
    for compiler in _gpu_compilers.values():
        compiler.tuned = source


def forget_schedules() -> None:
    """Schedules are chosen anew; compiled kernels stay."""
    kernel_compiler().forget_schedules()
    for compiler in _gpu_compilers.values():
        compiler.forget_schedules()

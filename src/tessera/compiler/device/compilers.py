"""The compilers of this process: one for its CPU, and one for each GPU that is used."""

from __future__ import annotations

from functools import cache

from tessera import settings, target
from tessera.backend.registry import backend_of, cpu_backend
from tessera.compiler.device.compiler import DeviceCompiler, Remembered
from tessera.lazy.devices import CPU
from tessera.runtime.devices.device import driver_of
from tessera.system import forks


class _Source:
    """What compilers ask for schedules before they take their own; `pipeline.py` has them ask the tuner."""

    asked: Remembered | None = None

    def tell(self, compiler: DeviceCompiler) -> None:
        """Has a compiler ask it."""
        compiler.tuned, compiler.remembered = None if self.asked is None else self.asked.tuned, self.asked


_source = _Source()


@cache
def kernel_compiler() -> DeviceCompiler:
    """The compiler for this machine's CPU, whose cores are measured where that was not done before. Raises
    UnsupportedTargetError where kernels cannot be generated for it.
    """
    with forks.importing:  # a fork waits for the modules, and for the probes that run meanwhile
        machine = target.detect()
        machine.require_supported()
        backend = cpu_backend()
        if settings.current().core_facts:
            machine = machine.with_core(backend.core_facts(machine))
        compiler = DeviceCompiler(machine, backend)
        _source.tell(compiler)
        return compiler


_gpu_compilers: dict[str, DeviceCompiler] = {}


def gpu_compiler(device: str) -> DeviceCompiler:
    """The compiler for a GPU, or for the interpreter. Raises what `runtime.device.driver_of` raises."""
    driver = driver_of(device)
    known = _gpu_compilers.get(device)
    if known is None or known.driver is not driver:
        known = _gpu_compilers[device] = DeviceCompiler(driver.target, backend_of(device), driver)
        _source.tell(known)
    return known


def compiler_of(device: str | None) -> DeviceCompiler:
    """The compiler for a device; None is the CPU."""
    return kernel_compiler() if device in (None, CPU) else gpu_compiler(str(device))


def ask_for_schedules(source: Remembered) -> None:
    """Has all compilers, those that exist and those to come, ask for the schedules of kernels. What was chosen without
    asking is chosen anew.
    """
    _source.asked = source
    for compiler in (*([kernel_compiler()] if kernel_compiler.cache_info().currsize else []), *_gpu_compilers.values()):
        _source.tell(compiler)
        compiler.forget_schedules()


def forget_schedules() -> None:
    """Schedules are chosen anew; compiled kernels stay."""
    kernel_compiler().forget_schedules()
    for compiler in _gpu_compilers.values():
        compiler.forget_schedules()

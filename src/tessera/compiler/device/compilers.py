"""The compilers of this process: one for its CPU, and one for each GPU that is used."""

from __future__ import annotations

from functools import cache

from tessera import target
from tessera.backend.registry import cpu_backend, gpu_backend
from tessera.compiler.device import gpu_kernels, kernels
from tessera.compiler.device.gpu_kernels import GpuKernelCompiler
from tessera.compiler.device.kernels import KernelCompiler
from tessera.lazy.devices import CPU
from tessera.runtime.device import driver_of


class _Sources:
    """What compilers ask for schedules before they take their own; `pipeline.py` has them ask the tuner."""

    cpu: kernels.ScheduleSource | None = None
    gpu: gpu_kernels.ScheduleSource | None = None


_sources = _Sources()


@cache
def kernel_compiler() -> KernelCompiler:
    """The compiler for this machine's CPU. Raises UnsupportedTargetError where kernels cannot be generated for it."""
    machine = target.detect()
    machine.require_supported()
    compiler = KernelCompiler(machine, cpu_backend())
    compiler.source = _sources.cpu
    return compiler


_gpu_compilers: dict[str, GpuKernelCompiler] = {}


def gpu_compiler(device: str) -> GpuKernelCompiler:
    """The compiler for a GPU, or for the interpreter. Raises what `runtime.device.driver_of` raises."""
    driver = driver_of(device)
    known = _gpu_compilers.get(device)
    if known is None or known.driver is not driver:
        known = _gpu_compilers[device] = GpuKernelCompiler(driver.target, driver, gpu_backend(device))
        known.source = _sources.gpu
    return known


def compiler_of(device: str | None) -> KernelCompiler | GpuKernelCompiler:
    """The compiler for a device; None is the CPU."""
    return kernel_compiler() if device in (None, CPU) else gpu_compiler(str(device))


def ask_for_schedules(cpu: kernels.ScheduleSource, gpu: gpu_kernels.ScheduleSource) -> None:
    """Has all compilers, those that exist and those to come, ask for the schedules of kernels."""
    _sources.cpu, _sources.gpu = cpu, gpu
    if kernel_compiler.cache_info().currsize:
        kernel_compiler().source = cpu
    for compiler in _gpu_compilers.values():
        compiler.source = gpu


def forget_schedules() -> None:
    """Schedules are chosen anew; compiled kernels stay."""
    kernel_compiler().forget_schedules()
    for compiler in _gpu_compilers.values():
        compiler.forget_schedules()

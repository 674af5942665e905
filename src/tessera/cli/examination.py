"""What Tessera finds on this machine, and what to do about what it does not find: `tessera doctor`."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tessera import settings, target
from tessera.cli.doctor_gpu import Diagnosis, State, gpus
from tessera.cli.sizes import PIPED_WIDTH, size
from tessera.errors import CacheUntrustedError
from tessera.system import distribution
from tessera.system.distribution import installing
from tessera.system.private import PrivateFolder
from tessera.target.quota import quota
from tessera.target.stored_ceilings import stored_ceilings, stored_core
from tessera.tuning.store.processors import arch_of

_REQUIRED = ("torch", "numpy", "xdsl", "llvmlite", "polars", "rich", "typer", "matplotlib")
_OPTIONAL = {
    "triton": ("code for GPUs", "triton"),
    "nvidia-ml-py": ("power and utilization of NVIDIA GPUs", "nvidia"),
    "cupti-python": ("timings and counters on NVIDIA GPUs", "nvidia"),
    "opentelemetry-proto": ("export to OpenTelemetry", "otlp"),
    "tensorboard": ("the viewer as a tab of TensorBoard", "tensorboard"),
    "optuna": ("its samplers as strategies of tuning", "optuna"),
    "scikit-learn": ("the digits example", "dev"),
}
_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512vnni", "avx512bf16", "neon")
_STYLES: Mapping[State, str] = {"ok": "green", "absent": "yellow", "broken": "bold red"}


def report(measure: bool) -> bool:
    """Prints what there is, after measuring GPUs if need be; whether nothing is broken."""
    if measure:
        from tessera.backend.triton import ceilings as gpu_ceilings

        for index in range(torch.cuda.device_count()):
            gpu_ceilings.measured(index)
    found = examine(os.environ)
    table = Table(title="tessera doctor")
    for heading in ("subject", "state", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    section: str | None = None
    for name, finding in found:
        if name != section:
            table.add_section()
            section = name
        # As Text, because rich would take the brackets of a path or of `tessera-compiler[triton]` for its markup.
        state = Text(finding.state, _STYLES[finding.state])
        table.add_row(Text(finding.subject), state, Text(finding.found), Text(finding.remedy))
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)
    return all(finding.state != "broken" for _, finding in found)


def examine(environment: Mapping[str, str]) -> list[tuple[str, Diagnosis]]:
    """(section, finding) of everything that is looked at, in the order of the report."""
    sections = {
        "versions": versions(),
        "cpu": cpu(target.detect()),
        "threads": threads(environment),
        "caches": caches(),
        "gpu": gpus(),
        "counters": counters(),
        "environment": variables(environment),
    }
    return [(name, finding) for name, findings in sections.items() for finding in findings]


def versions() -> Iterator[Diagnosis]:
    """Python and the packages: a required one that is missing is broken, an optional one absent."""
    yield Diagnosis("Python", "ok", platform.python_version())
    yield _version(distribution.NAME, f"{distribution.VERSION}, run without being installed", installing(), "absent")
    for name in _REQUIRED:
        yield _version(name, "not installed", f"python -m pip install {name}", "broken")
    for name, (purpose, extra) in _OPTIONAL.items():
        yield _version(name, f"not installed; it is for {purpose}", installing(extra), "absent")


def _version(package: str, otherwise: str, remedy: str, state: State) -> Diagnosis:
    try:
        return Diagnosis(package, "ok", metadata.version(package))
    except metadata.PackageNotFoundError:
        return Diagnosis(package, state, otherwise, remedy)


def cpu(machine: target.Target) -> Iterator[Diagnosis]:
    """The CPU, what of its vector instructions kernels use, its caches, and what winners of tuning are kept under."""
    reason = machine.unsupported_reason()
    remedy = "kernels need AVX2 and FMA, or NEON; if this is a virtual machine, have it pass the CPU's features through"
    yield (
        Diagnosis("CPU", "broken", reason, remedy)
        if reason
        else Diagnosis("CPU", "ok", f"{machine.name}, {machine.arch}")
    )
    present = [feature for feature in _FEATURES if feature in machine.features]
    yield Diagnosis("vectors", "ok", f"{machine.vector_registers} of {machine.vector_bits} bits; {' '.join(present)}")
    yield from matrix_unit(machine)
    levels = (f"{level.name} {size(level.size_bytes)}" for level in machine.memory if level.size_bytes)
    yield Diagnosis("memory", "ok", ", ".join(levels))
    if not reason:
        measured = stored_core(machine) if settings.current().core_facts else None
        yield Diagnosis("winners of", "ok", arch_of(machine.with_core(measured)))


def matrix_unit(machine: target.Target) -> Iterator[Diagnosis]:
    """What a matrix unit multiplies, or why this process may not use it; nothing where the CPU has none."""
    from tessera.backend.llvm.machine_code.engine import host_features

    if "amx-tile" not in host_features():
        return
    reason = target.amx_refusal()
    if reason is None:
        dtypes = [name for name, has in (("bf16", machine.has_amx_bf16), ("int8", machine.has_amx_int8)) if has]
        yield Diagnosis("matrix unit", "ok", f"AMX: {', '.join(dtypes)}")
    else:
        remedy = "products of bf16 and int8 run on vectors, which takes several times as long"
        yield Diagnosis("matrix unit", "absent", reason, remedy)


def threads(environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Processors, the number of threads that kernels use, and the pool they run on."""
    from tessera.lazy.threads import worker_count
    from tessera.runtime.plans.native import threading_reason

    machine = target.detect()
    yield Diagnosis("processors", "ok", f"{machine.processors} usable, {machine.cores} cores")
    origin = next((name for name in ("TESSERA_THREADS", "OMP_NUM_THREADS") if environment.get(name)), "torch's default")
    yield Diagnosis("kernel threads", "ok", f"{worker_count()} ({origin})")
    granted = quota()
    if not math.isinf(granted):
        yield Diagnosis("quota", "ok", f"the time of {granted:g} processors, which that many threads use up")
    if worker_count() > machine.processors:
        remedy = f"set OMP_NUM_THREADS={machine.processors}: more threads than processors wait for one another"
        yield Diagnosis("oversubscription", "absent", "more threads than processors", remedy)
    reason = threading_reason()
    if settings.current().openmp and "one after the other" in reason:
        yield Diagnosis(
            "OpenMP", "absent", reason, "install a build of torch that brings libgomp (the Linux wheels do)"
        )
    else:
        yield Diagnosis("OpenMP", "ok", reason)


def caches() -> Iterator[Diagnosis]:
    """The folders that Tessera writes to: how much they hold, and whether they can be written."""
    now = settings.current()
    yield cache("tuning cache", now.autotune_dir)
    yield own(cache("object cache", now.objects_dir), now.objects_dir)
    yield ceilings()


def ceilings() -> Diagnosis:
    """What this CPU was measured to do at most; without it reports cannot say what part of the bound was reached."""
    known = stored_ceilings()
    if known is None:
        return Diagnosis("ceilings", "absent", "not measured yet", "`tessera quickstart` measures them, once per CPU")
    fp32 = known.flop_per_s("fp32", 1)
    peak = "" if fp32 is None else f", {fp32 / 1e9:.4g} GFLOP/s in fp32 on one thread"
    return Diagnosis("ceilings", "ok", f"measured {known.date}{peak}")


def cache(subject: str, folder: Path) -> Diagnosis:
    """One folder. Without a writable one Tessera works, but compiles and tunes anew in every process."""
    # os.path.exists, because Path.exists raises where a folder above may not be searched.
    existing = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = f"make {existing} a folder you may write to, or set TESSERA_CACHE_DIR"
        return Diagnosis(subject, "absent", f"{folder}: not writable", remedy)
    if existing != folder:
        return Diagnosis(subject, "ok", f"{folder}: empty, made when first needed")
    sizes = list(file_sizes(folder))
    free = shutil.disk_usage(folder).free
    found = f"{folder}: {len(sizes)} files, {size(sum(sizes))}; {size(free)} free on the disk"
    if free < 2**26:
        return Diagnosis(subject, "absent", found, "free some space: what does not fit is compiled and tuned again")
    return Diagnosis(subject, "ok", found)


def own(found: Diagnosis, folder: Path) -> Diagnosis:
    """A folder's finding, or why what lies there is not used: machine code comes from folders of this user's alone."""
    try:
        PrivateFolder(folder).require()
    except CacheUntrustedError as error:
        return Diagnosis(found.subject, "absent", error.message, error.hints[0])
    except OSError:
        pass
    return found


def file_sizes(folder: Path) -> Iterator[int]:
    """The size in bytes of every file below a folder; files that other processes remove meanwhile do not count."""
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(place, name)).st_size


def counters() -> Iterator[Diagnosis]:
    """Each counter backend: how many of its quantities can be read here, and the first reason why others cannot."""
    from tessera.profiling.counters import registry

    for name, fields in registry.capabilities().items():
        missing = {field: capability for field, capability in fields.items() if not capability.available}
        readable = [field for field in fields if field not in missing]
        found = f"{len(readable)} of {len(fields)}: {', '.join(readable)}" if readable else ""
        if not missing:
            yield Diagnosis(name, "ok", found)
            continue
        first = next(iter(missing.values()))
        remedy = "none needed" if first.absent else first.remedy
        reasons = f"not {', '.join(missing)}: {first.reason}"
        yield Diagnosis(name, "ok" if readable else "absent", "; ".join(filter(None, [found, reasons])), remedy)


def variables(environment: Mapping[str, str]) -> Iterator[Diagnosis]:
    """The TESSERA_* variables that are set; one that means nothing is probably misspelt."""
    for name, value, meaning in settings.current().variables():
        if environment.get(name):
            yield Diagnosis(name, "ok", f"{value}: {meaning}")
    known = ", ".join(name for name, _, _ in settings.current().variables())
    for name in settings.unknown_variables(environment):
        yield Diagnosis(name, "absent", "not a variable of Tessera", f"known are {known}")

"""The environments contenders run in: environment variables of their worker processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from bench.machine import cpu_flags

MKL_SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
"""MKL asks this function whether to use its fastest paths; preloaded, it says yes on every maker's CPU."""


class NotMeasuredError(Exception):
    """A contender that cannot run here. Its text is the reason, shown in the table."""


@contextmanager
def onednn_packs() -> Iterator[None]:
    """Within it oneDNN packs weights; the peer whose weights it refuses for this CPU's sake is not measured.

    Raises:
        NotMeasuredError: what oneDNN says.
    """
    try:
        yield
    except RuntimeError as refusal:
        raise NotMeasuredError(f"oneDNN packs no such weights here: {refusal}") from None


def environment(name: str, threads: int) -> dict[str, str]:
    """The complete environment of the workers called `name`, one of `_EXTRA`; a misspelt one is a KeyError, as the
    plain environment in its place would measure another contender.

    Raises:
        NotMeasuredError: something the environment needs is missing on this machine.
    """
    count = str(threads)
    result = dict(os.environ)
    result.update(OMP_NUM_THREADS=count, MKL_NUM_THREADS=count, OPENBLAS_NUM_THREADS=count, TESSERA_THREADS=count)
    result.update(_EXTRA[name]())
    return result


def unaided(name: str, threads: int, caches: Path) -> dict[str, str]:
    """`environment` for a tuner that knows nothing beforehand: caches in an empty folder, and no winners that a site or
    the package has. Raises as `environment`.
    """
    result = environment(name, threads)
    result.pop("TESSERA_TUNE_SITE_DIR", None)
    return result | {"TESSERA_CACHE_DIR": str(caches), "TESSERA_TUNE_SHIPPED": "0"}


def _raised() -> dict[str, str]:
    """glibc keeps large blocks on its heap instead of returning their pages, as `mallopt` would do."""
    return {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
        "MALLOC_TOP_PAD_": str(1 << 28),
    }


def _mkl() -> dict[str, str]:
    return {"LD_PRELOAD": str(mkl_shim())}


def _openblas() -> dict[str, str]:
    # The timeout is a power of two of cycles: with the default, 2^26, idle workers spin into the next batch.
    result = {"OPENBLAS_THREAD_TIMEOUT": "18"}
    flags = cpu_flags()
    if "avx512_bf16" in flags:
        result["OPENBLAS_CORETYPE"] = "Cooperlake"
    elif "avx512f" in flags:
        result["OPENBLAS_CORETYPE"] = "SkylakeX"
    return result


def _compile() -> dict[str, str]:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NotMeasuredError("torch.compile needs a C++ compiler")
    return {"CXX": compiler, "TORCHINDUCTOR_FREEZING": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def _compile_mkl() -> dict[str, str]:
    return _compile() | _mkl()


_EXTRA: dict[str, Callable[[], dict[str, str]]] = {
    "tessera": dict,
    "torch": dict,
    "control": dict,
    "raised": _raised,
    "mkl": _mkl,
    "openblas": _openblas,
    "compile": _compile,
    "compile_mkl": _compile_mkl,
    "tvm": dict,
}
"""What each environment adds to that of the benchmark."""


@cache
def mkl_shim() -> Path:
    """Builds the shim that unlocks MKL's AVX-512 path and returns its path (kept until the machine cleans up).

    Raises:
        NotMeasuredError: there is no C compiler, or it fails.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotMeasuredError("unlocking MKL's AVX-512 path needs a C compiler")
    folder = Path(tempfile.mkdtemp(prefix="tessera-bench-"))
    source, library = folder / "mkl_shim.c", folder / "mkl_shim.so"
    source.write_text(MKL_SHIM)
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotMeasuredError(f"the C compiler failed on the MKL shim: {done.stderr.strip().splitlines()[-1:]}")
    return library

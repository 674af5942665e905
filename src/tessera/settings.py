"""Every `TESSERA_*` environment variable, typed, read once.

`current()` gives the settings in force; algorithms take values from it and never look at the environment.
`override(...)` changes some for a while, for the whole process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tessera.errors import ArgumentError
from tessera.system.private import own_folder

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SWITCH = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("a whole number from 1 up is meant")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("a positive number of seconds is meant")
    return value


def _share(text: str) -> float | None:
    word = text.strip().lower()
    if word == "first_call":
        return None
    value = float(word)
    if not 0 < value <= 1:
        raise ValueError("a share of time from above 0 to 1 is meant, or first_call")
    return value


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", text.strip().upper())
    if match is None:
        raise ValueError("a size such as 512M or 8GiB is meant")
    return int(float(match[1]) * _UNITS[match[2]])


def _switch(text: str) -> bool:
    try:
        return _SWITCH[text.strip().lower()]
    except KeyError:
        raise ValueError("0 or 1 is meant") from None


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"one of {', '.join(words)} is meant")
        return word

    return parse


def _variable(name: str, parse: Callable[[str], Any], meaning: str) -> dict[str, Any]:
    return {"variable": name, "parse": parse, "meaning": meaning}


@dataclass(frozen=True)
class Settings:
    """The settings of a process. `variables()` lists the environment variable, the value and the meaning of each."""

    cache_dir: Path | None = field(
        default=None, metadata=_variable("TESSERA_CACHE_DIR", _path, "folder of all caches, instead of $HOME/.tessera")
    )
    threads: int | None = field(
        default=None, metadata=_variable("TESSERA_THREADS", _count, "workers of a kernel; else torch.get_num_threads()")
    )
    openmp: bool = field(
        default=True, metadata=_variable("TESSERA_OPENMP", _switch, "whether kernels may run on torch's OpenMP threads")
    )
    memory_limit_bytes: int | None = field(
        default=None, metadata=_variable("TESSERA_MEMORY_LIMIT", _bytes, "most bytes that results and scratch may hold")
    )
    plan_cache_size: int = field(
        default=1024, metadata=_variable("TESSERA_PLAN_CACHE_SIZE", _count, "most bound plans that are kept")
    )
    autotune: bool = field(
        default=False, metadata=_variable("TESSERA_AUTOTUNE", _switch, "whether kernels are tuned while they are used")
    )
    tune_share: float | None = field(
        default=0.1,
        metadata=_variable(
            "TESSERA_TUNE_SHARE", _share, "share of the time that tuning may take; first_call tunes a kernel at once"
        ),
    )
    tune_budget_s: float = field(
        default=30.0, metadata=_variable("TESSERA_TUNE_BUDGET", _seconds, "most seconds spent on tuning one kernel")
    )
    tune_timeout_s: float = field(
        default=20.0, metadata=_variable("TESSERA_TUNE_TIMEOUT", _seconds, "seconds after which a candidate is hung")
    )
    tune_site_dir: Path | None = field(
        default=None, metadata=_variable("TESSERA_TUNE_SITE_DIR", _path, "a read-only tuning cache shared by a site")
    )
    tune_shipped: bool = field(
        default=True,
        metadata=_variable("TESSERA_TUNE_SHIPPED", _switch, "whether winners that come with the package are used"),
    )
    core_facts: bool = field(
        default=True,
        metadata=_variable(
            "TESSERA_CORE_FACTS", _switch, "whether schedules heed what was measured of this CPU's cores (once, 0.2 s)"
        ),
    )
    cuda_graphs: str = field(
        default="auto",
        metadata=_variable(
            "TESSERA_CUDA_GRAPHS", _one_of("auto", "on", "off"), "plans as CUDA graphs: from the second call, or always"
        ),
    )
    shape_buckets: bool = field(
        default=False,
        metadata=_variable(
            "TESSERA_SHAPE_BUCKETS", _switch, "whether shapes of about one size share GPU kernels and graphs"
        ),
    )
    interpreter_target: str = field(
        default="sm90",
        metadata=_variable("TESSERA_INTERPRETER_TARGET", str.strip, 'GPU that the device "interpreter" stands for'),
    )
    traceback: str = field(
        default="short",
        metadata=_variable(
            "TESSERA_TRACEBACK", _one_of("short", "full"), "whether tracebacks of errors show Tessera's own frames"
        ),
    )
    profile_records: int = field(
        default=65_536, metadata=_variable("TESSERA_PROFILE_RECORDS", _count, "records in the profiler's ring buffer")
    )
    profile_attach: bool = field(
        default=True,
        metadata=_variable("TESSERA_PROFILE_ATTACH", _switch, "whether tessera-prof may attach to this process"),
    )
    profile_home: Path | None = field(
        default=None,
        metadata=_variable("TESSERA_PROFILE_HOME", _path, "socket of the tessera-prof that runs this program"),
    )
    profile_replay: bool = field(
        default=False,
        metadata=_variable("TESSERA_PROFILE_REPLAY", _switch, "whether that one counts kernels of GPUs by replay"),
    )

    profile_ranges: str = field(
        default="auto",
        metadata=_variable(
            "TESSERA_PROFILE_RANGES",
            _one_of("auto", "off", "nvtx", "roctx", "itt"),
            "ranges for Nsight, rocprof or VTune: auto emits them where such a tool is attached",
        ),
    )

    collective_timeout_s: float = field(
        default=300.0,
        metadata=_variable(
            "TESSERA_COLLECTIVE_TIMEOUT_S", _seconds, "seconds after which a collective that waits for a rank fails"
        ),
    )
    host: str = field(
        default="",
        metadata=_variable(
            "TESSERA_HOST",
            str.strip,
            "name of the host that this rank counts as being on: ranks of other names share no memory with it",
        ),
    )
    launcher: str | None = field(
        default=None,
        metadata=_variable("TESSERA_LAUNCHER", str.strip, "socket of the tessera run that started this rank"),
    )

    @property
    def autotune_dir(self) -> Path:
        """The tuning cache: TESSERA_CACHE_DIR itself, else $HOME/.tessera/autotune. It need not exist yet."""
        return self.cache_dir or _home() / "autotune"

    @property
    def objects_dir(self) -> Path:
        """The compiled objects: TESSERA_CACHE_DIR/objects, else $HOME/.tessera/objects; where somebody else can write
        that one, objects-UID beside it. It need not exist yet.
        """
        return own_folder((self.cache_dir or _home()) / "objects")

    @property
    def ceilings_dir(self) -> Path:
        """The measured ceilings: TESSERA_CACHE_DIR/ceilings, else $HOME/.tessera/ceilings. It need not exist yet."""
        return (self.cache_dir or _home()) / "ceilings"

    @property
    def attach_dir(self) -> Path:
        """Sockets to attach to: TESSERA_CACHE_DIR/attach, else $HOME/.tessera/attach. It need not exist yet."""
        return (self.cache_dir or _home()) / "attach"

    @property
    def profiles_dir(self) -> Path:
        """Records of sessions that could not be written where they should: TESSERA_CACHE_DIR/profiles, else
        $HOME/.tessera/profiles; chosen as `objects_dir` is. It need not exist yet.
        """
        return own_folder((self.cache_dir or _home()) / "profiles")

    @property
    def triton_dir(self) -> Path:
        """Printed GPU kernels and what they compile to: TESSERA_CACHE_DIR/triton, else $HOME/.tessera/triton; chosen as
        `objects_dir` is. It need not exist yet.
        """
        return own_folder((self.cache_dir or _home()) / "triton")

    @property
    def cuda_tile_dir(self) -> Path:
        """Programs of CUDA Tile IR and what they compile to: TESSERA_CACHE_DIR/cuda_tile, else
        $HOME/.tessera/cuda_tile; chosen as `objects_dir` is. It need not exist yet.
        """
        return own_folder((self.cache_dir or _home()) / "cuda_tile")

    def variables(self) -> list[tuple[str, Any, str]]:
        """(environment variable, value in force, meaning) of every setting."""
        return [(f.metadata["variable"], getattr(self, f.name), f.metadata["meaning"]) for f in fields(self)]


def _home() -> Path:
    try:
        return Path.home() / ".tessera"
    except RuntimeError as error:
        raise ArgumentError(
            "no home folder to keep caches in", hints=["set HOME, or TESSERA_CACHE_DIR to a folder"]
        ) from error


def read(environment: Mapping[str, str]) -> Settings:
    """The settings that an environment asks for; an empty variable counts as unset.

    Raises ArgumentError, which names the variable, for a value that cannot be read.
    """
    values = {}
    for f in fields(Settings):
        text = environment.get(f.metadata["variable"], "")
        if not text:
            continue
        try:
            values[f.name] = f.metadata["parse"](text)
        except ValueError as error:
            raise ArgumentError(f"{f.metadata['variable']}={text!r}: {error}", hints=[f.metadata["meaning"]]) from error
    return Settings(**values)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Names that start with TESSERA_ and mean nothing, sorted: probably misspelt."""
    known = {f.metadata["variable"] for f in fields(Settings)}
    return sorted(name for name in environment if name.startswith("TESSERA_") and name not in known)


_current: Settings | None = None
fixed_threads: int | None = None
"""`threads` of the settings in force once they have been read: a variable, because every call of a plan looks."""


def current() -> Settings:
    """The settings in force. The environment is read at the first call; later changes to it have no effect."""
    return _current or _put_in_force(read(os.environ))


def _put_in_force(wanted: Settings) -> Settings:
    global _current, fixed_threads
    _current, fixed_threads = wanted, wanted.threads
    return wanted


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Changes settings by field name until the end of the `with` block, for all threads.

    Raises TypeError for a name that is no setting.
    """
    before = current()
    try:
        yield _put_in_force(replace(before, **changes))
    finally:
        _put_in_force(before)

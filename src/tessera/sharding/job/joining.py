"""Joining a job: this process becomes one of the ranks that torchrun or `tessera run` has started.

Whatever may block for a rank that is gone is done beside the program (`beside.py`).
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Final, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.distributed.rendezvous import rendezvous

from tessera import settings
from tessera.errors import JobError, TesseraError
from tessera.sharding.job import beside, members
from tessera.sharding.job.faults import FORKED
from tessera.sharding.job.job import ProcessJob
from tessera.sharding.job.watcher import Watcher
from tessera.sharding.transport import gloo
from tessera.system import forks

T = TypeVar("T")
_JOINING: Final = "this rank joins its job"
_lock = forks.lock()
_job: ProcessJob | None = None
_group: weakref.ref[dist.ProcessGroup] | None = None
_is_forked = False


def join() -> ProcessJob:
    """The job that this process is a rank of; joins it at the first call, which every rank makes. It is that of the
    process group that there is, or else the one that `torchrun` or `tessera run` has started. A process that nobody
    started as a rank is a job of its own. Where the process group is replaced, so is the job.

    Raises RankLostError (E_RANK_LOST) where another rank is gone, JobError (E_JOB) where the job cannot be reached,
    ForkedError (E_FORKED) in forks of a rank.
    """
    global _job, _group  # noqa: PLW0603 - the process is a rank of one job
    if _is_forked:
        raise FORKED.error("")
    with _lock:
        world = dist.group.WORLD if _has_group() else None
        if _job is None or (world is not None and (_group is None or _group() is not world)):
            _job = _joined()
            world = dist.group.WORLD if _has_group() else None
            _group = None if world is None else weakref.ref(world)
        return _job


def is_rank() -> bool:
    """Whether this process is one of the ranks of a job: `join` would find others, or those that it is alone with."""
    return _job is not None or _has_group() or "RANK" in os.environ


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _joined() -> ProcessJob:
    has_group = _has_group()
    if not has_group and "RANK" not in os.environ:
        watcher = Watcher(0, None)
        return ProcessJob(watcher, [members.myself(0, watcher.mailbox.name)])
    watcher = Watcher(dist.get_rank() if has_group else _number("RANK"), settings.current().launcher)
    os.register_at_fork(after_in_child=_forked)
    _relay(watcher)
    size = dist.get_world_size() if has_group else _number("WORLD_SIZE")
    timeout = timedelta(seconds=settings.current().collective_timeout_s)
    store = _get_default_store() if has_group else _beside(lambda: _rendezvous(timeout), watcher)
    own = PrefixStore("tessera", store)
    texts = _beside(lambda: _told(own, watcher.rank, size, members.myself(watcher.rank, watcher.mailbox.name)), watcher)
    job = ProcessJob(watcher, [members.read(text) for text in texts])
    job.meet()
    if job.spans_hosts(range(job.size)):
        _beside(lambda: job.meet_elsewhere(own), watcher)
    group = _beside(lambda: _gloo(has_group, store, watcher.rank, size, timeout), watcher)
    job.use(group)
    return job


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    if not text.isdecimal():
        raise JobError(f"{variable}={text!r} where RANK is set", hints=["start ranks by `tessera run` or torchrun"])
    return int(text)


def _rendezvous(timeout: timedelta) -> Store:
    """The store of the job, at MASTER_ADDR and MASTER_PORT."""
    store: Store = next(iter(rendezvous("env://", timeout=timeout)))[0]
    return store


def _told(store: Store, rank: int, size: int, own: members.Member) -> list[str]:
    """All members as texts, by rank."""
    store.set(f"member/{rank}", own.text)
    return [store.get(f"member/{each}").decode() for each in range(size)]


def _gloo(has_group: bool, store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup | None:
    """The process group for messages: the default one, which is made if there is none, or one beside it that is."""
    if not has_group:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    elif "cpu:gloo" not in str(dist.get_backend_config()):
        group: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=timeout)
        return group
    return None


def _beside(call: Callable[[], T], watcher: Watcher) -> T:
    """What a call gives that may block. Raises the job's fault meanwhile, and JobError for what the call raises."""
    try:
        return beside.beside(call, watcher, _JOINING)
    except (RuntimeError, ValueError, OSError) as error:
        if isinstance(error, TesseraError):
            raise
        text = str(error).strip().partition("\n")[0]
        raise JobError(f"rank {watcher.rank} cannot join its job: {text}") from error


def _relay(watcher: Watcher) -> None:
    """When this rank's program ends, the others hear how."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        code = error.code if isinstance(error, TesseraError) else ""
        watcher.tell(code, traceback.format_exception_only(kind, error)[-1].partition("\n")[0])
        before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_leave, watcher)


def _leave(watcher: Watcher) -> None:
    """The program has ended: what it has begun is ended, too. What frees a process group ends the process with an error
    while a thread is in Gloo, where one stays for ever after a fault: then the process ends here, and its exit code is
    1 after a fault.
    """
    is_whole = _finish(watcher)
    watcher.leave()
    is_stuck = not is_whole or gloo.is_busy() or beside.is_busy()
    if is_stuck and not _is_forked:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if is_whole and watcher.fault is None else 1)


def _finish(watcher: Watcher) -> bool:
    """Waits for what nobody has waited for, which others may need; gives whether all went well. An error is told, and
    printed, as one of the program.
    """
    job = _job
    if job is None or job.watcher is not watcher or _is_forked or watcher.has_raised or not _has_group():
        return True  # where the program has destroyed its process group, nothing can end any more
    try:
        job.finish()
    except TesseraError as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return False
    return True


def _forked() -> None:
    global _is_forked  # noqa: PLW0603 - as of `_job`
    _is_forked = True

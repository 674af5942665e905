"""Calls that may block for a rank that is gone, made beside the program, which waits where a fault wakes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from tessera.sharding.job.watcher import Watcher

T = TypeVar("T")
_LOOK_S: Final = 0.02
_LOST_S: Final = 1.0
"""How long a call that has failed waits for the watcher to say why."""
_NAME: Final = "tessera-beside"


def beside(call: Callable[[], T], watcher: Watcher, doing: str) -> T:
    """What a call gives that may block, which is made on a thread of its own. Raises the job's fault meanwhile, and
    what the call raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again below, on the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name=_NAME, daemon=True)
    thread.start()
    while thread.is_alive():
        watcher.check(doing)
        thread.join(_LOOK_S)
    watcher.check(doing)
    if errors:
        if isinstance(errors[0], RuntimeError):  # of torch.distributed: most often because a rank is gone
            watcher.wait_for_fault(_LOST_S)
            watcher.check(doing)
        raise errors[0]
    return results[0]


def is_busy() -> bool:
    """Whether a call is still under way: after a fault it may be there for ever."""
    return any(thread.name == _NAME for thread in threading.enumerate())

"""One schedule for all ranks of a job, without waiting: through the store of torch.distributed.

The first rank that meets a kernel says under which schedule it runs (an atomic operation of the store), and all others
take that. The same rank tunes it, and announces the winner together with the number of the call from which on it is
used, so that ranks that do the same take it up at the same step. A rank that is gone is missed by nobody: what it said
holds, and without a winner the first schedule stays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.store.identity import Identity

LIMIT_S: Final = 2.0
"""Seconds after which a store that does not answer is given up."""
DECIDES_WITHIN_S: Final = 300.0
"""A winner that takes longer is stored for the next job, and not announced to this one."""

_NEWS = "news"

T = TypeVar("T")


@dataclass(frozen=True)
class Decision:
    """What a kernel runs under, from the call `from_call` on; `final` says that no other decision follows."""

    schedule: Schedule
    final: bool = False
    from_call: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return {"schedule": self.schedule.to_json(), "final": self.final, "from_call": self.from_call}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Decision:
        """The decision that `to_json` wrote."""
        return cls(Schedule.from_json(record["schedule"]), record["final"], record["from_call"])


class LostStoreError(Exception):
    """The job's store does not answer any more."""


class Agreement:
    """The decisions of a job. A method takes a round trip or two to the `store`, `LIMIT_S` each at most; all raise
    LostStoreError, and once one has, all do at once.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self.store = store
        self._rank = rank
        self._lost: str | None = None
        self._connection: Store | None = None

    def propose(self, identity: Identity, first: Decision) -> tuple[Decision, bool]:
        """The first decision for a kernel, and whether that is this one."""
        text = json.dumps({"rank": self._rank, **first.to_json()})
        held = json.loads(self._ask(lambda store: store.compare_set(f"first/{_digest(identity)}", "", text)))
        return Decision.from_json(held), held["rank"] == self._rank

    def announce(self, identity: Identity, decision: Decision) -> None:
        """Says what follows the first decision for a kernel."""
        text = json.dumps(decision.to_json())
        self._ask(lambda store: store.set(f"next/{_digest(identity)}", text))
        self._ask(lambda store: store.add(_NEWS, 1))

    def news(self) -> int:
        """How many decisions have been announced."""
        return self._ask(lambda store: store.add(_NEWS, 0))

    def announced(self, identity: Identity) -> Decision | None:
        """What has been announced for a kernel."""
        key = f"next/{_digest(identity)}"
        if not self._ask(lambda store: store.check([key])):
            return None
        return Decision.from_json(json.loads(self._ask(lambda store: store.get(key))))

    def _ask(self, question: Callable[[Store], T]) -> T:
        if self._lost is not None:
            raise LostStoreError(self._lost)
        try:
            if self._connection is None:
                # Of its own: who shares one waits for all that others wait for.
                self._connection = PrefixStore("tessera/tuning", cast(Any, self.store).clone())
                self._connection.set_timeout(timedelta(seconds=LIMIT_S))
            return question(self._connection)
        except RuntimeError as error:
            self._lost = str(error).splitlines()[0]
            raise LostStoreError(self._lost) from error


def is_job() -> bool:
    """Whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


_known: list[Agreement] = []


def of_this_job() -> Agreement | None:
    """The agreement of the ranks of this process's job; None where it is alone."""
    if not is_job():
        return None
    store = _get_default_store()
    if not _known or _known[0].store is not store:
        _known[:] = [Agreement(store, dist.get_rank())]
    return _known[0]


def _digest(identity: Identity) -> str:
    return hashlib.sha256(json.dumps(identity.to_json(), sort_keys=True).encode()).hexdigest()

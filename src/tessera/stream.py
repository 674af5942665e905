"""Streams: work that runs in order, beside the program and beside other streams.

>>> from tessera import op, stream
>>> s = stream.create(name="compute")
>>> y = op.matmul(a, b, stream=s)       # returns at once
>>> y.torch()                           # waits for the product
"""

from __future__ import annotations

from tessera.lazy.devices import check_device
from tessera.runtime.streams.stream import Stream, Sync

__all__ = ["Stream", "Sync", "create"]


def create(name: str | None = None, *, device: object = "cpu", sync: Sync = "auto") -> Stream:
    """A new stream of a device: "cpu", "cuda", "cuda:1", ... or "interpreter".

    With `sync="auto"` the runtime makes work wait for work of other streams whose memory it touches. With
    `sync="manual"` the program does, by events, and what it forgot is StreamRaceError (E_STREAM_RACE) at the call.
    Raises DeviceError (E_DEVICE) for a device that there is not, ArgumentError (E_ARGUMENT) for another `sync`.
    """
    return Stream(name, check_device(device), sync)

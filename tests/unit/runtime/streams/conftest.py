"""Nothing of a file's streams stays for other tests: while a manual one lives, evaluations take the long way."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tessera.runtime.streams.stream import tracker


@pytest.fixture(scope="module", autouse=True)
def no_streams_left() -> Iterator[None]:
    yield
    gc.collect()
    tracker.settle((), ())

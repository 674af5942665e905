"""One nursery for the tests of a worker of pytest: starting it imports torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.sharding.job.nursery import Nursery, nursery


@pytest.fixture(scope="session")
def forks() -> Iterator[Nursery]:
    """What starts ranks."""
    with nursery() as made:
        yield made

"""Increments of sessions: nothing that a program waits for is imported when it is attached to."""

from __future__ import annotations

import numpy
from hypothesis import given
from hypothesis import strategies as st

from tessera.profiling.recording.recording import distinct
from tests import forked

PROGRAM = """
import sys
from tessera import op
from tessera.profiling.attach.increments import Taker
from tessera.profiling.session.options import SessionOptions
from tessera.profiling.session.sessions import Session
x = op.tensor((8, 8))
op.add(x, x).eval()
before = set(sys.modules)
session = Session(SessionOptions(), observer=True)
session.__enter__()
op.add(x, x).eval()
taken = Taker(session).take()
taken.pack()
assert len(taken.rows) == 1
print(*set(sys.modules) - before)
"""


@given(st.lists(st.integers(-(2**40), 2**40)))
def test_distinct_numbers_are_those_of_the_set(numbers: list[int]) -> None:
    assert distinct(numpy.array(numbers, numpy.int64)) == set(numbers)


def test_attaching_imports_nothing_into_the_program() -> None:
    done = forked.run(PROGRAM)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr

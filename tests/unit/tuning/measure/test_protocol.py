"""Messages of the measuring process: what is no reply is refused, whatever a broken process sends."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.tuning.measure.protocol import CandidateCheck, Done, Reply, Sample, pack_reply, read_reply

replies: st.SearchStrategy[Reply] = st.one_of(
    st.just(Done()),
    st.builds(CandidateCheck, st.sampled_from(["ok", "crashed", "wrong", "out_of_memory"]), st.text()),
    st.builds(
        Sample,
        st.floats(0, 1e9, exclude_min=True),
        st.integers(1, 10**6),
        st.booleans(),
        st.sampled_from(["call", "graph", "stream"]),
    ),
)


@given(replies)
def test_a_reply_survives_the_way(reply: Reply) -> None:
    assert read_reply(pack_reply(reply)) == reply


@given(st.one_of(st.binary(max_size=60), st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode)))
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no reply"):
        read_reply(body)


@pytest.mark.parametrize(
    "changes", [{"seconds": 0.0}, {"seconds": float("nan")}, {"seconds": "soon"}, {"launch": "rocket"}, {"more": 1}]
)
def test_a_sample_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    fields = asdict(Sample(1.0, 3, False)) | changes
    with pytest.raises(ValueError, match=r"no reply|no time|no way"):
        read_reply(json.dumps(["Sample", fields]).encode())


def test_an_outcome_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="no outcome"):
        read_reply(b'["CandidateCheck", {"outcome": "fine"}]')

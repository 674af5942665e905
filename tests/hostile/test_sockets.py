"""Attaching where others play false: decoys, peers that do not read, records that say nonsense, no descriptors."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tessera import op, profile
from tessera.errors import AttachError
from tessera.profiling.attach import client, places, wire
from tessera.profiling.attach.client import Attachment
from tessera.profiling.attach.home import Home
from tessera.profiling.attach.increments import Increment, Taker
from tessera.profiling.attach.places import Process
from tessera.profiling.session.options import SessionOptions
from tessera.profiling.session.sessions import Session
from tests.hostile.users import COLLEAGUE, give, needs_root

DECOYS = 400
HELLO = {"ok": True, "pid": 7, "start": 8, "rank": 0, "command": ["train.py"]}

PROGRAM = """
import ctypes, os, sys
import torch
from tessera import op
op.exp(torch.ones(3)).eval()
child = 0 if len(sys.argv) > 1 else None
if len(sys.argv) > 1 and (child := os.fork()) == 0:  # all is imported, of what another user may not read
    os.setresgid(*[int(sys.argv[1])] * 3)
    os.setresuid(*[int(sys.argv[1])] * 3)
    os.environ["XDG_RUNTIME_DIR"] = sys.argv[2]
    assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE: nobody may look into it
    op.exp(torch.ones(3)).eval()
if not child:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(runtime: Path, *arguments: str) -> Iterator[int]:
    """The number of a program that has run a plan and waits."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "TESSERA_CACHE_DIR": str(runtime / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        cwd="/",
    ) as program:
        try:
            assert program.stdout is not None
            yield int(program.stdout.readline())
        finally:
            assert program.stdin is not None
            program.stdin.close()


@contextmanager
def decoys(folder: Path, wanted: Process, count: int, user: int | None = None) -> Iterator[None]:
    """Sockets of this process's under the name of another's, each in a folder of its own."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            path = folder / str(number) / wanted.socket_name
            path.parent.mkdir()
            decoy = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            decoy.bind(str(path))
            decoy.listen(1)
            if user is not None:
                os.chown(path, user, user)
        yield


@pytest.mark.parametrize("user", [None, pytest.param(COLLEAGUE, marks=needs_root)], ids=["ours", "another's"])
def test_decoys_do_not_keep_anybody_from_attaching(meeting_place: Path, user: int | None) -> None:
    with listening(meeting_place) as pid:
        wanted = places.process(pid)
        assert wanted is not None
        with decoys(meeting_place, wanted, DECOYS, user):
            begun = time.monotonic()
            with client.attach(pid) as attachment:
                assert attachment.hello["pid"] == pid
            assert time.monotonic() - begun < 60  # each decoy alone could take a second


def test_a_process_that_only_has_decoys_is_not_taken_for_one_of_them(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        wanted = places.process(other.pid)
        assert wanted is not None
        with (
            tempfile.TemporaryDirectory(prefix="tessera-decoys-") as folder,  # short, as a socket's path is
            decoys(Path(folder), wanted, 3),
            pytest.raises(AttachError, match="belongs to process"),
        ):
            client.connect(other.pid)
        other.kill()


@needs_root
def test_a_process_into_which_nobody_may_look_is_its_users(meeting_place: Path) -> None:
    own = meeting_place / "own"
    own.mkdir()
    with listening(meeting_place, str(COLLEAGUE), str(give(own, COLLEAGUE))) as pid:
        assert places.owner(pid) == COLLEAGUE
        with client.attach(pid) as attachment:
            assert attachment.hello["pid"] == pid


def test_a_home_goes_on_when_descriptors_have_run_out(monkeypatch: pytest.MonkeyPatch, meeting_place: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(meeting_place))
    came, refused = threading.Event(), threading.Event()
    with Home(lambda _: came.set(), lambda _: refused.set()) as home:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        opened: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    opened.append(os.dup(0))
            caller.connect(str(home.path))
            time.sleep(0.3)
            assert not came.is_set()
        finally:
            for each in opened:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with caller:
            asked = wire.receive(caller, wire.REQUEST_LIMIT, 60.0, 60.0)
            assert asked is not None
            wire.send(caller, HELLO, whole_s=60.0)
            assert came.wait(60.0)
        assert not refused.is_set()


def test_a_peer_that_does_not_read_holds_nobody_up() -> None:
    near, far = socket.socketpair()
    with near, far:
        begun = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            wire.send(near, {"a": 1}, bytes(64 << 20), whole_s=0.3)
        assert time.monotonic() - begun < 100


def test_a_peer_that_reads_a_byte_now_and_then_holds_nobody_up() -> None:
    near, far = socket.socketpair()
    ends = threading.Event()

    def sip() -> None:
        with far:
            while not ends.wait(0.02):
                far.recv(4096)

    reading = threading.Thread(target=sip)
    reading.start()
    with near:
        begun = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            wire.send(near, {"a": 1}, bytes(64 << 20), whole_s=0.3)
        assert time.monotonic() - begun < 100
        ends.set()
        reading.join()


@functools.cache
def real() -> Increment:
    """What a program of this process records: kernels, regions, counters."""
    session = Session(SessionOptions(), observer=True)
    session.__enter__()
    with profile.region("forward"):
        op.exp(op.zeros((3,))).eval()
    profile.counter("loss", 1.5, "")
    session.__exit__(None, None, None)
    header, payload = Taker(session).take().pack()
    return Increment.unpack(header, payload)


NONSENSE: tuple[Any, ...] = (
    *(None, -1, 0, 2**31, 2**63 - 1, 2**64, 10**400, -(2**63), 1.5, float("nan"), float("inf"), True),
    *("", "x", "\x1b[2J\x07", "\ud800", "x" * 10_000, [], [[]], [None], {}, {"x": {"y": []}}, [1, 2, 3]),
)


def places_in(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to each value inside a JSON value."""
    if here:
        yield here
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places_in(each, (*here, key))


def spoiled(rest: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """With nonsense in some place, or without what stands there."""
    made = copy.deepcopy(rest)
    *way, last = chance.choice(list(places_in(made)))
    around = functools.reduce(lambda value, key: value[key], way, made)
    if chance.random() < 0.2:
        del around[last]
    else:
        around[last] = chance.choice(NONSENSE)
    return made


def answered(*answers: tuple[dict[str, Any], bytes]) -> socket.socket:
    near, far = socket.socketpair()

    def answer() -> None:
        with far, contextlib.suppress(OSError):
            for header, payload in answers:
                wire.receive(far, wire.REQUEST_LIMIT, 5.0, 5.0)
                wire.send(far, header, payload, whole_s=60.0)

    threading.Thread(target=answer, daemon=True).start()
    return near


def outcome(increment: Increment) -> str | None:
    """How a client refuses what a process says that it recorded; None where it takes it, and can tell of it."""
    header, payload = increment.pack()
    leaving = ({"ok": True, "leaving": False, **header}, payload)
    made = Attachment(answered((HELLO, b""), ({"ok": True, "capability": {}}, b""), leaving))
    with contextlib.closing(made):
        made.start()
        try:
            made.read()
        except AttachError as error:
            return str(error)
        trace = made.trace()
        assert trace.events.collect().height >= 0
        return None


def test_what_a_process_really_records_is_taken() -> None:
    assert outcome(real()) is None


@pytest.mark.parametrize("seed", range(8))
def test_records_of_nonsense_are_taken_or_refused_in_one_way(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        refusal = outcome(Increment(real().rows, spoiled(real().rest, chance)))
        assert refusal is None or (refusal.isprintable() or "\n" in refusal)
        assert refusal is None or "\x1b" not in refusal


def test_native_records_of_nonsense_are_taken_or_refused_in_one_way() -> None:
    chance = random.Random(1)
    for _ in range(100):
        rows = real().rows.copy()
        for _ in range(chance.randint(1, 4)):
            row, column = chance.randrange(rows.shape[0]), chance.randrange(rows.shape[1])
            rows[row, column] = chance.choice((-1, 0, 1, 2**31, 2**62, -(2**63), 2**63 - 1, chance.getrandbits(40)))
        refusal = outcome(Increment(rows, real().rest))
        assert refusal is None or "\x1b" not in refusal

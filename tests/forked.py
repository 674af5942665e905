"""Programs in processes of their own that find torch and other libraries imported: forks of one process that has
imported those, and nothing of Tessera. A new process takes two seconds of a processor to come as far.

What a program's test is about must not be what a fork has from its parent: for imports themselves, for what the dynamic
linker or a library reads from the environment as it is loaded, and for options of Python, tests start new processes.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any

LIBRARIES = ("numpy", "torch", "llvmlite.binding", "xdsl.dialects.func", "xdsl.dialects.math", "xdsl.dialects.memref")
_HEAVY = frozenset(("numpy", "torch", "llvmlite", "xdsl", "sympy", "mpmath"))
"""Packages that forks never take apart."""
_WARM = """
from tessera import op, profile, settings
from tessera.compiler import entry
entry.load()
assert settings._current is None
"""
MESSAGE_BYTES = 1 << 16


class _Server:
    """A process that forks, and the socket on which it is asked to. It ends when nobody can ask it any more."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    @classmethod
    def new(cls) -> _Server:
        """A new process, which has imported `LIBRARIES`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # One thread: what another one holds would be held in forks for ever.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        return cls(ours)

    def ask(self, asked: Mapping[str, Any], *descriptors: int) -> None:
        """Has it fork what is asked for, which gets the descriptors."""
        socket.send_fds(self._channel, [json.dumps(asked).encode()], descriptors)

    def warmed(self) -> _Server:
        """A fork of it that has imported what a first evaluation of Tessera needs."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.ask({"program": _WARM, "serves": True, **_surroundings(None)}, theirs.fileno())
        return type(self)(ours)


@cache
def _made(warm: bool) -> _Server:
    return _made(False).warmed() if warm else _Server.new()


def _server(warm: bool) -> _Server:
    """The one that this process asks."""
    with _asking:
        return _made(warm)


_asking = threading.Lock()


def _surroundings(environment: Mapping[str, str] | None) -> dict[str, Any]:
    return {"environment": dict(os.environ if environment is None else environment), "folder": str(Path.cwd())}


def importing_tests() -> dict[str, str]:
    """An environment in which programs can import what this process can, tests too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


class Process:
    """A program in a fork: what `subprocess.Popen` has, as far as tests use it. `files` are its standard streams."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        files: Sequence[IO[Any] | int],
        environment: Mapping[str, str] | None = None,
        warm: bool = False,
    ) -> None:
        self.args, self.returncode = arguments, None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            asked = {"program": program, "arguments": list(arguments), **_surroundings(environment)}
            descriptors = [each if isinstance(each, int) else each.fileno() for each in files]
            _server(warm).ask(asked, theirs.fileno(), *descriptors)
        self.pid: int = self._said(None)

    returncode: int | None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired where it does not end in time."""
        if self.returncode is None:
            try:
                self.returncode = os.waitstatus_to_exitcode(self._said(timeout))
            except TimeoutError:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0) from None
            self._control.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signals it, unless it has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it."""
        self.send_signal(signal.SIGKILL)

    def _said(self, timeout: float | None) -> int:
        self._control.settimeout(timeout)
        said = self._control.recv(MESSAGE_BYTES)
        assert said, "the process that waits for a fork has ended"
        return int(said)


def run(
    program: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = 120.0,
    warm: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`python -c program arguments...` in an environment, this process's by default: how it ended, what it printed.
    One that starts `warm` finds what evaluates Tessera's expressions imported, and nothing done with it.

    Raises subprocess.TimeoutExpired after so many seconds.
    """
    try:
        done = _run(textwrap.dedent(program), ["-c", *arguments], environment, timeout, warm=warm)
    except subprocess.TimeoutExpired as late:
        raise subprocess.TimeoutExpired(late.cmd, timeout, _text(late.output), _text(late.stderr)) from None
    return subprocess.CompletedProcess(done.args, done.returncode, _text(done.stdout), _text(done.stderr))


def _text(written: bytes | None) -> str:
    return (written or b"").decode(errors="replace")


def tessera(*arguments: str, given: bytes = b"", timeout: float = 120.0) -> subprocess.CompletedProcess[bytes]:
    """The command `tessera arguments...` that reads `given`: how it ended, what it wrote.

    Raises subprocess.TimeoutExpired after so many seconds.
    """
    return _run("from tessera.cli.main import main; main()", ["tessera", *arguments], None, timeout, given)


def _run(
    program: str,
    arguments: list[str],
    environment: Mapping[str, str] | None,
    timeout: float,
    given: bytes = b"",
    warm: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    with (
        tempfile.TemporaryFile() as read,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as complaints,
    ):
        read.write(given)
        read.seek(0)
        process = Process(program, arguments, (read, output, complaints), environment, warm)
        try:
            returncode = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise subprocess.TimeoutExpired(arguments, timeout, _content(output), _content(complaints)) from None
        return subprocess.CompletedProcess(arguments, returncode, _content(output), _content(complaints))


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _serve(channel: socket.socket) -> Mapping[str, Any]:
    """Forks for every request. Returns in each fork, with what it is asked; ends when nobody can ask any more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        if not message:
            os._exit(0)
        while _reaped():
            pass
        if not os.fork():
            channel.close()
            asked: Mapping[str, Any] = json.loads(message)
            if asked.get("serves"):
                _become({**asked, "arguments": []})
                exec(asked["program"], {})
                _settle()
                channel = socket.socket(fileno=descriptors[0])
                continue
            control, *standard = descriptors
            child = os.fork()
            if not child:
                os.close(control)
                for descriptor, place in zip(standard, (0, 1, 2), strict=True):
                    os.dup2(descriptor, place)
                    os.close(descriptor)
                return asked
            # Waits for the program, so that the server can go on.
            for descriptor in standard:
                os.close(descriptor)
            with socket.socket(fileno=control) as said:
                said.send(str(child).encode())
                said.send(str(os.waitpid(child, 0)[1]).encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _reaped() -> bool:
    """Whether a fork has ended, and was taken note of."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _settle() -> None:
    """Has forks share what is there by now: their collectors of cycles pass over it."""
    gc.collect()
    gc.freeze()


def _become(asked: Mapping[str, Any]) -> None:
    """Makes this fork what a new process of the program would be, up to its first line."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = asked["arguments"]
    ahead = [each for each in asked["environment"].get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = ["", *ahead, *(each for each in sys.path if each not in ("", *ahead))]


def _leave(libraries: Sequence[str]) -> None:
    """Has the interpreter end without taking these modules apart, which takes a second of a processor, as long as a
    small program. What the program itself imported is taken apart.
    """
    _left.extend(sys.modules.pop(name) for name in libraries if name in sys.modules)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_left))


_left: list[ModuleType] = []
"""Modules that are never taken apart, and so the list neither."""


if __name__ == "__main__":
    _libraries: list[str] = []
    # Before the libraries have anything done at the end: what is asked first is done last.
    atexit.register(_leave, _libraries)
    for _library in LIBRARIES:
        import_module(_library)
    assert not any(name.partition(".")[0] == "tessera" for name in sys.modules)
    _libraries += [name for name in sys.modules if name.partition(".")[0] in _HEAVY]
    _settle()
    _asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(_asked)
    sys.modules["__main__"] = ModuleType("__main__")
    # At the end of this file, so that the process ends as one of the program does.
    exec(compile(_asked["program"], "<string>", "exec"), vars(sys.modules["__main__"]))

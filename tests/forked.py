"""Programs in processes of their own that find torch and other libraries imported: forks of one process that has
imported those, and nothing of Tessera. A new process takes two seconds of a processor to come as far.

What a program's test is about must not be what a fork has from its parent: for imports themselves, for what the dynamic
linker or a library reads from the environment as it is loaded, and for options of Python, tests start new processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

LIBRARIES = ("numpy", "torch", "llvmlite.binding", "xdsl.dialects.func", "xdsl.dialects.math", "xdsl.dialects.memref")
MESSAGE_BYTES = 1 << 16


class _Server:
    """The process that forks, and the socket on which it is asked to. It ends when nobody can ask it any more."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # One thread: what another one holds would be held in forks for ever.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    def answer(self, timeout: float | None = None) -> Any:
        """What the server says next. Raises TimeoutError where that takes longer."""
        self.channel.settimeout(timeout)
        said = self.channel.recv(MESSAGE_BYTES)
        assert said, "the process that forks has ended"
        return json.loads(said)


@cache
def _server() -> _Server:
    return _Server()


def run(
    program: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """`python -c program arguments...` in an environment, this process's by default: how it ended, what it printed.

    Raises subprocess.TimeoutExpired after so many seconds.
    """
    try:
        done = _run(textwrap.dedent(program), ["-c", *arguments], environment, timeout)
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
    program: str, arguments: list[str], environment: Mapping[str, str] | None, timeout: float, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    server = _server()
    asked = {
        "program": program,
        "arguments": arguments,
        "environment": dict(os.environ if environment is None else environment),
        "folder": str(Path.cwd()),
    }
    with (
        tempfile.TemporaryFile() as read,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as complaints,
    ):
        read.write(given)
        read.seek(0)
        descriptors = [each.fileno() for each in (read, output, complaints)]
        socket.send_fds(server.channel, [json.dumps(asked).encode()], descriptors)
        pid = server.answer()
        try:
            status = server.answer(timeout)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            server.answer()
            raise subprocess.TimeoutExpired(arguments, timeout, _content(output), _content(complaints)) from None
        returncode = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(arguments, returncode, _content(output), _content(complaints))


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _serve(channel: socket.socket) -> Mapping[str, Any]:
    """Forks for every request. Returns in each fork, with what it is asked; ends when nobody can ask any more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            os._exit(0)
        child = os.fork()
        if not child:
            channel.close()
            for descriptor, standard in zip(descriptors, (0, 1, 2), strict=True):
                os.dup2(descriptor, standard)
                os.close(descriptor)
            asked: Mapping[str, Any] = json.loads(message)
            return asked
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps(child).encode())
        channel.send(json.dumps(os.waitpid(child, 0)[1]).encode())


def _become(asked: Mapping[str, Any]) -> None:
    """Makes this fork what a new process of the program would be, up to its first line."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = asked["arguments"]
    ahead = [each for each in asked["environment"].get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = ["", *ahead, *(each for each in sys.path if each not in ahead)]


if __name__ == "__main__":
    from importlib import import_module
    from types import ModuleType

    for _library in LIBRARIES:
        import_module(_library)
    assert not any(name.partition(".")[0] == "tessera" for name in sys.modules)
    _asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(_asked)
    sys.modules["__main__"] = ModuleType("__main__")
    # At the end of this file, so that the process ends as one of the program does.
    exec(compile(_asked["program"], "<string>", "exec"), vars(sys.modules["__main__"]))

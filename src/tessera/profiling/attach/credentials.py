"""Who is at the other end of a socket, as the kernel says."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final, NamedTuple

_UCRED: Final = struct.Struct("3i")


class Peer(NamedTuple):
    """A process at the other end: its number, user and group when it connected or began to listen."""

    pid: int
    uid: int
    gid: int


def peer(connection: socket.socket) -> Peer:
    """The process at the other end of a connected AF_UNIX socket."""
    return Peer(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def may_attach(uid: int) -> bool:
    """Whether a user may see what this process does: its own user, and root, who may anyway."""
    return uid in (os.geteuid(), 0)


def may_profile(owner: int) -> bool:
    """Whether this process may profile one that runs as `owner`: those of its own user, and root all."""
    return os.geteuid() in (owner, 0)

"""Messages between the processes of a job on one host: datagrams of JSON, with descriptors, over abstract sockets.

A message from another user is thrown away. Nothing has a name in the file system, so that nothing is left behind.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

_BYTES: Final = 1 << 16
_DESCRIPTORS: Final = 4
_CREDENTIALS: Final = struct.Struct("3i")
_SEND_S: Final = 1.0


class Letter(NamedTuple):
    """A message and the descriptors that came with it."""

    content: Mapping[str, Any]
    descriptors: list[int]


class Mailbox:
    """A socket of this process. `name` is where others write to."""

    def __init__(self) -> None:
        self.name = f"tessera-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{self.name}")

    def fileno(self) -> int:
        """The descriptor, which is readable when a message is there."""
        return self._socket.fileno()

    def send(self, name: str, content: Mapping[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """Writes to another mailbox; gives whether it was there, and took the message in time."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SEND_S)
            try:
                rights = array("i", descriptors)
                carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
                sender.sendmsg([json.dumps(content).encode()], carried, 0, f"\0{name}")
            except OSError:
                return False
            return True

    def receive(self) -> Letter | None:
        """The next message, which must be there; None for one of another user, or that cannot be read."""
        room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_DESCRIPTORS * 4)
        data, ancillary, _, _ = self._socket.recvmsg(_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        descriptors: list[int] = []
        uid = None
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                uid = _CREDENTIALS.unpack(payload)[1]
            elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += struct.unpack(f"{len(payload) // 4}i", payload)
        try:
            content = json.loads(data)
        except ValueError:
            content = None
        if uid == os.geteuid() and isinstance(content, dict):
            return Letter(content, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def close(self) -> None:
        """The name is free again."""
        self._socket.close()

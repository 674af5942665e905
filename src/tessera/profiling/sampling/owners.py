"""Whose a process is."""

from __future__ import annotations

import os

from tessera.errors import ProfileError


def owner_of(pid: int) -> int:
    """The user number of a process. Raises ProfileError where there is none."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        raise ProfileError(f"there is no process {pid}", hints=["look at `ps -u $USER`"]) from None


def refuse_strangers(pid: int) -> None:
    """Raises ProfileError where the process belongs to another user and this one is not root."""
    owner, user = owner_of(pid), os.geteuid()
    if user not in (0, owner):
        raise ProfileError(
            f"process {pid} belongs to user {owner}, and this is user {user}",
            hints=["profile it as its own user, or as root"],
        )

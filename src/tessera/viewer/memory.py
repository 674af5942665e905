"""The memory that a server allows its answers where nobody says how much."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
"""Source: proc(5)."""


def default_bytes(meminfo: Path = MEMINFO) -> float:
    """Half of the memory that is available on this machine; no limit where the system does not say."""
    try:
        told = meminfo.read_text()
    except OSError:
        return math.inf
    available = re.search(r"^MemAvailable:\s*(\d+) kB", told, re.MULTILINE)
    return int(available[1]) * 1024 / 2 if available else math.inf

"""How much of a machine's processors a process may use at most: what Linux grants its group, as containers limit it.

A group that has used up its share of a period waits for the next one, all its threads at once. Threads beyond the
share bring that about sooner, most of all those that spin while they wait for each other.
"""

from __future__ import annotations

import math
import re
from pathlib import Path


def quota(root: Path = Path("/")) -> float:
    """Processors' worth of time that this process is granted, infinite where nothing limits it; the least of what its
    own group and those around it say (cgroups of either version).
    """
    mounted = root / "sys/fs/cgroup"
    granted = [math.inf]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            granted += [_granted(_read(folder / "cpu.max")) for folder in _around(mounted, group)]
        elif "cpu" in controllers.split(","):
            for controller in {controllers, "cpu"}:
                for folder in _around(mounted / controller, group):
                    limit, period = (_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
                    granted.append(_granted(f"{limit} {period}"))
    return min(granted)


def threads_within(granted: float) -> int | None:
    """The threads that such a share keeps busy; None where it is without end."""
    return None if math.isinf(granted) else max(1, math.floor(granted + 0.5))


def _around(mounted: Path, group: str) -> list[Path]:
    """The folders of a group and of those around it. A container may see its own as the outermost one."""
    parts = [part for part in group.split("/") if part and part != ".."]
    return [mounted.joinpath(*parts[:count]) for count in range(len(parts) + 1)]


def _granted(text: str) -> float:
    """Of "microseconds of each period"; infinite for "max", -1, and what is no limit."""
    found = re.fullmatch(r"(\d+) (\d+)", text.strip())
    return int(found[1]) / int(found[2]) if found and int(found[1]) and int(found[2]) else math.inf


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""Python stacks of another process, through py-spy where it is installed. Nothing is put into that process."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars

RATE_HZ: Final = 100
_STOPS_WITHIN_S: Final = 10.0


def unavailable() -> str | None:
    """Why stacks cannot be had; None where py-spy is there."""
    if shutil.which("py-spy") is None:
        return "py-spy is not installed; python -m pip install py-spy"
    return None


class StackSampling:
    """A run of `py-spy record` beside the process, `RATE_HZ` times a second. Reading does not pause the process."""

    def __init__(self, pid: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-stacks-")
        self._path = Path(self._folder.name) / "stacks.json"
        self._start_ns = time.monotonic_ns()
        self.failure: str | None = None
        command = ["py-spy", "record", "--pid", str(pid), "--format", "chrometrace", "--nonblocking"]
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [*command, "--rate", str(RATE_HZ), "--output", str(self._path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def end(self) -> None:
        """Ends the recording; what was recorded stays for `take`."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            _, complaint = self._process.communicate(timeout=_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, complaint = self._process.communicate()
        if not self._path.exists():
            said = complaint.decode(errors="replace").strip().splitlines()
            self.failure = f"py-spy: {said[-1]}" if said else "py-spy wrote no stacks"
        self._process = None

    def take(self, zero_ns: int) -> polars.DataFrame:
        """Slices of time with one stack each, as rows of kind "sample" named "stack"; the value is seconds. Empty until
        the recording has ended, and after the first call. Instants are early by the time that py-spy takes to start,
        about a tenth of a second.
        """
        from tessera.profiling.trace.table import frame

        if self._process is not None or not self._path.exists():
            return frame({})
        events = json.loads(self._path.read_text())
        self._folder.cleanup()
        rows = folded(events if isinstance(events, list) else events["traceEvents"])
        count = len(rows)
        return frame(
            {
                "kind": ["sample"] * count,
                "kernel_name": ["stack"] * count,
                "start_ns": [self._start_ns - zero_ns + start for start, _, _, _ in rows],
                "dur_ns": [duration for _, duration, _, _ in rows],
                "thread_id": [thread for _, _, thread, _ in rows],
                "stack": [stack for _, _, _, stack in rows],
                "value": [duration / 1e9 for _, duration, _, _ in rows],
                "unit": ["s"] * count,
                "device": ["cpu"] * count,
                "backend": ["py-spy"] * count,
            }
        )


def folded(events: list[dict[str, object]]) -> list[tuple[int, int, int, str]]:
    """(start, duration, thread, stack) in nanoseconds of every time in which a thread's stack stood still, of nested
    begin and end events of a Chrome trace.
    """
    rows: list[tuple[int, int, int, str]] = []
    open_frames: dict[int, list[str]] = {}
    since: dict[int, int] = {}
    for event in events:
        thread, at = int(str(event.get("tid", 0))), round(float(str(event.get("ts", 0))) * 1000)
        frames = open_frames.setdefault(thread, [])
        if event.get("ph") not in ("B", "E"):
            continue
        if frames and at > since[thread]:
            rows.append((since[thread], at - since[thread], thread, ";".join(frames)))
        since[thread] = at
        if event["ph"] == "B":
            frames.append(str(event.get("name", "")))
        elif frames:
            frames.pop()
    return rows

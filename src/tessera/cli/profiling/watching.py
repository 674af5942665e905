"""What `tessera-prof top` shows: what a process runs, again and again."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Final

import polars
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tessera.cli.profiling.record import Stop, until_signalled
from tessera.errors import ArgumentError
from tessera.profiling.analyses import kernels
from tessera.profiling.analyses.presentation.result import cell
from tessera.profiling.attach import client
from tessera.profiling.attach.client import Attachment
from tessera.profiling.recording.texts import printed
from tessera.profiling.sampling import sampling
from tessera.profiling.sampling.sampling import Sampling

_SHOWN: Final = 20
_READ_S: Final = 1.0
"""Most seconds between readings: the process's ring holds so much, and it must know that somebody is there."""

_SYSTEM: Final = {
    "cpu_pct": ("{:.0f} % CPU", 1.0),
    "rss_bytes": ("{:,.0f} MiB resident", 2.0**-20),
    "threads": ("{:.0f} threads", 1.0),
    "disk_read": ("{:,.1f} MiB/s read", 2.0**-20),
    "disk_write": ("{:,.1f} MiB/s written", 2.0**-20),
}
"""How the latest samples of the process are shown, by field: text, scale."""


def watch(pid: int, interval: float, once: bool) -> None:
    """Prints pictures of a process until a signal comes or it ends. Raises ArgumentError for an interval of no use."""
    if not 0.05 <= interval <= 3600:
        raise ArgumentError(f"--interval {interval:g}: 0.05 to 3600 seconds are meant")
    process = client.wanted(pid)
    console = Console()
    live = console.is_terminal and not once  # else one picture after the other
    with until_signalled() as stop, sampling.sample_process(pid, interval_ms=max(50.0, 50 * interval)) as sampled:
        attachment = client.connect(pid)
        if attachment is not None:
            attachment.start()
        watched = _Watch(pid, attachment, sampled)
        with Live(console=console, auto_refresh=False, screen=True) if live else nullcontext() as display:
            while True:
                watched.wait(stop, interval)
                picture = watched.picture()
                if display is not None:
                    display.update(picture, refresh=True)
                else:
                    console.print(picture)
                if once or stop.is_set() or not process.alive:
                    break
    if attachment is not None:
        attachment.close()
    if not process.alive:
        console.print(f"process {pid} has ended")


class _Watch:
    """What happened since the last picture."""

    def __init__(self, pid: int, attachment: Attachment | None, sampled: Sampling) -> None:
        self._pid = pid
        self._attachment = attachment
        self._sampled = sampled
        self._since = time.monotonic()
        self._latest: dict[str, float] = {}

    def wait(self, stop: Stop, interval_s: float) -> None:
        """Waits until the next picture is due, and reads meanwhile."""
        due = self._since + interval_s
        while (left := due - time.monotonic()) > 0 and not stop.wait(min(left, _READ_S)):
            self._read()
        self._read()

    def _read(self) -> None:
        if self._attachment is not None:
            self._attachment.read()

    def picture(self) -> Group:
        """What the system says of the process, and its kernels, hottest first."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        title = Text(f"process {self._pid}: {self._system()}")
        if self._attachment is None:
            return Group(
                title, Text("it does not listen: it has run no Tessera plan, or TESSERA_PROFILE_ATTACH is off")
            )
        trace = self._attachment.trace()
        self._attachment.increments.clear()
        rows = kernels.grouped(trace, "kernel", ())
        launched, recorded = trace.metadata["launched"], trace.metadata["recorded"]
        lost = "" if launched == recorded else f", {launched - recorded:,} not recorded"
        return Group(title, Text(f"{launched / seconds:,.0f} kernels/s{lost}"), _table(rows, seconds))

    def _system(self) -> str:
        """The latest samples of the process itself."""
        found = self._sampled.take().filter(polars.col("backend") == "process")
        self._latest |= dict(found.select("kernel_name", "value").iter_rows())
        shown = ((text, scale * self._latest[name]) for name, (text, scale) in _SYSTEM.items() if name in self._latest)
        return ", ".join(text.format(value) for text, value in shown)


def _table(rows: polars.DataFrame, seconds: float) -> Table:
    table = Table()
    for heading in ("Op", "Calls/s", "Of the time(%)", "Mean(us)", "GFLOP/s", "GB/s"):
        table.add_column(heading, justify="left" if heading == "Op" else "right")
    for row in rows.head(_SHOWN).iter_rows(named=True):
        taken_s = row["total_ms"] / 1e3
        work = (f"{row[name] / taken_s / 1e9:,.1f}" if row[name] is not None else "-" for name in ("flops", "bytes"))
        table.add_row(
            Text(printed(row["kernel"])),
            f"{row['calls'] / seconds:,.0f}",
            f"{100 * taken_s / seconds:.1f}",
            cell(1e3 * row["total_ms"] / row["calls"]),
            *work,
        )
    if len(rows) > _SHOWN:
        table.caption = f"and {len(rows) - _SHOWN} more"
    return table

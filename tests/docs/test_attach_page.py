"""docs/attach-to-a-job.md: its commands run, one after the other, and do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import polars

from tessera.profiling.trace import reading
from tests.docs.snippets import ROOT

PRELUDE = """set -eu
trap 'kill "$PID" 2>/dev/null || true' EXIT
# What the page gives some seconds to is waited for here: the program's first plan.
sleep() { until compgen -G "$XDG_RUNTIME_DIR/tessera/tessera-$PID-*.sock" >/dev/null; do command sleep 0.1; done; }
"""


STEP = "while time.monotonic() < end:\n"


def commands(folder: Path) -> str:
    """A folder with `python` and `tessera-prof`, as an installation has them."""
    folder.mkdir()
    for name, arguments in {"python": "", "tessera-prof": "-c 'from tessera.cli.prof import main; main()' "}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
        (folder / name).chmod(0o755)
    return str(folder)


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "attach-to-a-job.md").read_text()
    script = "\n".join(re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert STEP in script
    # The program has a processor to itself on the page; here a pause in each step leaves some to the commands.
    script = script.replace(STEP, f"{STEP}    time.sleep(0.02)\n")
    path = os.pathsep.join([commands(tmp_path / "bin"), os.environ["PATH"]])
    sources = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        ["bash", "-c", PRELUDE + script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert " matmul+gelu " in done.stdout
    assert "attached to process" in done.stderr
    assert (tmp_path / "perf.csv").read_text().startswith("operator,")
    for name in ("trace.json", "run.parquet"):
        kernels = reading.read(tmp_path / name).events.filter(polars.col("kind") == "kernel").collect()
        assert set(kernels["operator"].cast(str)) == {"matmul+gelu", "softmax"}
        # Also those of a region that was open when the client came: a program's first plan makes the client come.
        assert set(kernels["region"].cast(str)) == {"forward"}

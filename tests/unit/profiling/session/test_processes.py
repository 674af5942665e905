"""Processes that `multiprocessing` starts by spawning: each records and exports for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tessera import profile

PROGRAM = """
import multiprocessing, sys
import torch
from tessera import op, profile
from tessera.profiling.ring import recorder
from tessera.profiling.session import sessions


def work(folder, number):
    assert sessions.count() == 0 and not recorder.recording(), "a spawned process begins without sessions"
    with profile.session(exporters=[profile.parquet(f"{folder}/child-{number}.parquet")]):
        with profile.region(f"child {number}"):
            for _ in range(number + 1):
                op.neg(torch.ones(8)).eval()


if __name__ == "__main__":
    folder = sys.argv[1]
    spawning = multiprocessing.get_context("spawn")
    with profile.session(exporters=[profile.parquet(f"{folder}/parent.parquet")]), profile.region("parent"):
        op.exp(torch.ones(8)).eval()
        children = [spawning.Process(target=work, args=(folder, number)) for number in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    sys.exit(max(child.exitcode for child in children))
"""


def test_spawned_children_record_and_export_on_their_own(tmp_path: Path, cache_dir: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = tmp_path / "traces"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(program), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TESSERA_CACHE_DIR": str(cache_dir)},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for path in sorted(folder.iterdir()):
        trace = profile.read(path)
        events = trace.events.collect()
        kernels = events.filter(events["kind"] == "kernel").select("operator", "region").rows()
        assert trace.metadata["launched"] == trace.metadata["recorded"] == len(kernels)
        assert events["pid"].n_unique() == 1
        found[path.stem] = (kernels, events["pid"][0])
    assert {name: kernels for name, (kernels, _) in found.items()} == {
        "parent": [("exp", "parent")],
        "child-0": [("neg", "child 0")],
        "child-1": [("neg", "child 1")] * 2,
    }
    assert len({pid for _, pid in found.values()}) == 3

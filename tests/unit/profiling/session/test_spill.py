"""What a session has on disk while it is on: all that was drained, readable after the process was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import profile
from tessera.profiling.session import sessions
from tests.unit.profiling.support import run, script, two_step_plan


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_was_spilled_can_be_read_after_the_process_was_killed(end: str, cache_dir: Path) -> None:
    done = script(
        f"""
        import os, signal, time
        import torch
        from tessera import op, profile
        with profile.session(spill=True) as session:
            op.exp(torch.ones(3)).eval()
            while not (session.spill.folder / "part-000000.parquet").exists():
                time.sleep(0.05)
            {end}
        """,
        cache_dir,
    )
    assert done.returncode in (3, -9), done.stderr
    (folder,) = (cache_dir / "profiles").iterdir()
    trace = profile.read(folder)
    assert trace.events.collect()["operator"].to_list() == ["exp"]
    assert (trace.metadata["launched"], trace.metadata["recorded"]) == (1, 1)


def test_kernels_of_a_region_that_is_open_are_named_in_what_was_spilled(cache_dir: Path) -> None:
    done = script(
        """
        import os, signal, time
        import torch
        from tessera import op, profile
        with profile.session(spill=True) as session:
            with profile.region("epoch"):
                for part, operator in enumerate([op.exp, op.neg]):
                    with profile.region(f"step {part}"):
                        operator(torch.ones(3)).eval()
                        while not (session.spill.folder / f"part-{part:06}.parquet").exists():
                            time.sleep(0.05)
                    op.relu(torch.ones(3)).eval()
            op.cos(torch.ones(3)).eval()
            with profile.region("last"):
                op.sin(torch.ones(3)).eval()
                while not (session.spill.folder / "part-000002.parquet").exists():
                    time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        cache_dir,
    )
    assert done.returncode == -9, done.stderr
    (folder,) = (cache_dir / "profiles").iterdir()
    events = profile.read(folder).events.collect()
    kernels = events.filter(events["kind"] == "kernel").select("operator", "region")
    assert kernels.rows() == [
        ("exp", "step 0"),
        ("relu", "epoch"),
        ("neg", "step 1"),
        ("relu", "epoch"),
        ("cos", None),
        ("sin", "last"),
    ]
    regions = events.filter(events["kind"] == "region")
    assert regions["kernel_name"].to_list() == ["epoch", "step 0", "step 1", "last"]
    (last_kernel,) = events.filter(events["operator"] == "sin")["start_ns"].to_list()
    (last,) = regions.filter(regions["kernel_name"] == "last").iter_rows(named=True)
    assert last["start_ns"] <= last_kernel <= last["start_ns"] + last["dur_ns"]


def test_parts_hold_every_event_once(cache_dir: Path) -> None:
    plan = two_step_plan()
    with profile.session(spill=True, record_shapes=True) as session:
        assert session.spill is not None
        for number in range(3):
            with profile.region(f"step {number}"):
                run(plan)
            profile.counter("loss", number)
            session.spill._due_ns = 0
            sessions._tend()
        found = profile.read(session.spill.folder)
        events = found.events.collect()
        assert len(list(session.spill.folder.iterdir())) == 3
    assert events.equals(session.trace().events.collect())
    assert (found.metadata["launched"], found.metadata["ranks"]) == (6, session.metadata()["ranks"])


def test_a_spill_is_removed_when_the_session_has_ended(cache_dir: Path) -> None:
    with profile.session(spill=True) as session:
        run(two_step_plan())
        assert session.spill is not None
        sessions._tend()
        assert len(list(session.spill.folder.iterdir())) == 1
    assert not session.spill.folder.exists()
    assert session.recorded == len(session.records()) == 2


def test_a_spill_that_the_disk_refuses_leaves_the_session_alone(cache_dir: Path) -> None:
    cache_dir.write_text("a file where the folder should be")
    with profile.session(spill=True) as session:
        run(two_step_plan())
        sessions._tend()
        assert session.spill is not None
        assert session.spill.failed
    assert session.recorded == 2

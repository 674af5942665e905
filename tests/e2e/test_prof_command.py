"""`tessera-prof`: attaching to real processes, running programs, and reading what was recorded."""

from __future__ import annotations

import csv
import os
import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import polars
import pytest

from tessera.cli.prof import main
from tessera.profiling.attach import client, places
from tessera.profiling.trace import reading
from tests.e2e.programs import Program, Programs


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """A process that has run a plan."""
    with Programs() as made:
        found = made.start()
        found.do("step()")
        yield found


@pytest.fixture
def programs() -> Iterator[Programs]:
    with Programs() as made:
        yield made


class Command:
    """Runs `tessera-prof` in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: object, status: int = 0) -> tuple[str, str]:
        """What it wrote to stdout and stderr."""
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        said = self._capture.readouterr()
        assert end.value.code == status, said.err
        return said.out, said.err


@pytest.fixture
def prof(capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(capfd)


@contextmanager
def meanwhile(what: Callable[[], object]) -> Iterator[None]:
    """Does something in another thread during the `with` block."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(what)
        yield
        doing.result(120)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def read_so_far(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many events the command has read of the process that it is attached to."""
    attachments: list[client.Attachment] = []
    read = client.Attachment.read

    def noted(attachment: client.Attachment) -> object:
        found = read(attachment)
        attachments.append(attachment)
        return found

    monkeypatch.setattr(client.Attachment, "read", noted)
    return lambda: attachments[-1].recording().recorded if attachments else 0


def wait_until_attached(program: Program) -> None:
    wait_for(lambda: program.do("from tessera.profiling.session import sessions; print(sessions.count())") == "1")


def press_ctrl_c() -> None:
    wait_for(lambda: signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


def attached(program: Program, line: str) -> Callable[[], None]:
    """Has a program do something once somebody is attached, and then presses Ctrl-C."""

    def do() -> None:
        try:
            wait_until_attached(program)
            program.do(line)
        finally:
            press_ctrl_c()

    return do


def kernels(path: Path) -> polars.DataFrame:
    return reading.read(path).events.filter(polars.col("kind") == "kernel").collect()


def test_a_running_process_is_recorded_as_the_specification_writes_it(
    prof: Command, program: Program, tmp_path: Path
) -> None:
    events, summary = tmp_path / "trace.json", tmp_path / "perf.csv"
    with meanwhile(attached(program, "[step() for _ in range(20)]; __import__('time').sleep(0.2)")):
        _, said = prof(
            *("--pid", program.pid, "--sample-ms", 10, "--gpu", "--mem", "--tc", "--collectives"),
            *("--export", events, "--summary", summary),
        )
    assert f"attached to process {program.pid}; Ctrl-C ends it" in said
    assert "20 of 20 kernels" in said
    assert re.search("not measured: .*tc_util_pct.*: ", said)

    found = reading.read(events)
    assert (found.metadata["launched"], found.metadata["recorded"], found.metadata["dropped"]) == (20, 20, 0)
    rows = found.events.collect()
    assert set(rows["pid"]) == {program.pid}
    assert rows["start_ns"].is_sorted()
    assert rows["start_ns"][0] >= 0
    ran = rows.filter(polars.col("kind") == "kernel")
    assert set(ran["operator"].cast(str)) == {"add"}
    assert set(ran["region"].cast(str)) == {"step"}
    assert (rows["kind"] == "sample").any()
    assert found.metadata["processes"] == [{"pid": program.pid, "command": ["-c"], "whole": True}]
    with summary.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["operator"], row["calls"]) == ("add", "20")
    assert float(row["total_ms"]) == pytest.approx(sum(ran["dur_ns"]) / 1e6)


def test_ctrl_c_ends_it_and_the_process_goes_on(prof: Command, program: Program, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    paths = [tmp_path / name for name in ("trace.parquet", "trace.json", "trace.json.gz")]
    with meanwhile(attached(program, "step()")):
        prof("--pid", program.pid, *(word for path in paths for word in ("--export", path)))
    assert [len(kernels(path)) for path in paths] == [1, 1, 1]
    assert signal.getsignal(signal.SIGINT) is before
    assert program.do("from tessera.profiling.session import sessions; print(sessions.count())") == "0"


def test_what_cannot_be_written_is_kept(prof: Command, program: Program, tmp_path: Path, cache_dir: Path) -> None:
    (tmp_path / "trace.json").mkdir()
    with meanwhile(attached(program, "step()")):
        _, said = prof(
            "--pid", program.pid, "--export", tmp_path / "trace.json", "--summary", tmp_path / "a.csv", status=1
        )
    assert "E_PROFILE" in said
    (kept,) = (cache_dir / "profiles").glob("*.parquet")
    assert str(kept) in said
    assert len(kernels(kept)) == 1
    assert "add" in (tmp_path / "a.csv").read_text()


def test_a_process_that_is_stopped_is_let_go_and_what_it_told_is_kept(
    prof: Command,
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read_so_far: Callable[[], int],
) -> None:
    program = programs.start()
    program.do("step()")

    def stop() -> None:
        try:
            wait_until_attached(program)
            program.do("step()")
            wait_for(lambda: read_so_far() == 1)
            monkeypatch.setattr(client, "_ANSWER_S", 0.2)
            program.process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)
        finally:
            press_ctrl_c()

    with meanwhile(stop):
        _, said = prof("--pid", program.pid, "--export", tmp_path / "trace.csv")
    assert f"process {program.pid} does not answer; what it recorded until then is kept" in said
    assert len((tmp_path / "trace.csv").read_text().splitlines()) == 2


def test_of_a_process_that_is_killed_what_was_read_is_exported(
    prof: Command, programs: Programs, tmp_path: Path, read_so_far: Callable[[], int]
) -> None:
    program = programs.start()
    program.do("step()")

    def die() -> None:
        wait_until_attached(program)
        program.do("step()")
        wait_for(lambda: read_so_far() == 1)
        program.process.kill()

    with meanwhile(die):
        _, said = prof("--pid", program.pid, "--export", tmp_path / "trace.parquet")
    assert f"process {program.pid} has ended" in said
    found = reading.read(tmp_path / "trace.parquet")
    assert len(kernels(tmp_path / "trace.parquet")) == 1
    assert found.metadata["processes"][0]["whole"] is False


def test_a_process_that_runs_no_plan_is_sampled_and_joined_when_it_does(
    prof: Command, programs: Programs, tmp_path: Path
) -> None:
    program = programs.start()
    _, said = prof("--pid", program.pid, "--export", tmp_path / "a.parquet", "--duration", 0.3)
    assert "sampling from outside" in said
    assert set(reading.read(tmp_path / "a.parquet").events.collect()["kind"]) == {"sample"}

    def begin() -> None:
        wait_for(lambda: "tessera-sampling" in [thread.name for thread in threading.enumerate()])
        program.do("step()")
        attached(program, "step()")()

    with meanwhile(begin):
        prof("--pid", program.pid, "--export", tmp_path / "b.parquet")
    assert len(kernels(tmp_path / "b.parquet")) == 1


SCRIPT = """
    import sys
    from tessera import op, profile
    x = op.tensor((8, 8))
    for _ in range(5):
        with profile.region("step"):
            op.add(x, x).eval()
    {ending}
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    def write(ending: str = "") -> Path:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(SCRIPT).format(ending=ending))
        return path

    return write


def test_a_program_is_run_and_recorded_from_its_first_plan_to_its_last(
    prof: Command, script: Callable[..., Path], tmp_path: Path
) -> None:
    path = script("print(sys.argv[1:]); raise KeyError('late')")
    events = tmp_path / "trace.parquet"
    out, said = prof("--export", events, "--", sys.executable, path, "--lr", "0.1", status=1)
    assert out == "['--lr', '0.1']\n"
    assert "KeyError: 'late'" in said
    assert len(kernels(events)) == 5
    found = reading.read(events)
    assert found.metadata["launched"] == 5
    assert found.metadata["processes"][0]["command"] == [str(path), "--lr", "0.1"]
    assert found.metadata["processes"][0]["whole"] is True


def test_a_program_that_is_killed_passes_on_its_signal(prof: Command, script: Callable[..., Path]) -> None:
    path = script("import os, time; time.sleep(2.0); os.kill(os.getpid(), 9)")
    _, said = prof("--", sys.executable, path, status=128 + 9)
    assert "5 of 5 kernels" in said
    assert "add x 5" in said


def test_all_processes_of_a_program_are_recorded(prof: Command, script: Callable[..., Path], tmp_path: Path) -> None:
    path = script(
        """import os
    if not (child := os.fork()):
        op.matmul(x, x).eval()
        sys.exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 4)""".replace("\n    ", "\n")
    )
    events = tmp_path / "trace.parquet"
    _, said = prof("--export", events, "--", sys.executable, path, status=4)
    assert "6 of 6 kernels" in said
    ran = kernels(events)
    assert sorted(ran["operator"].cast(str)) == ["add"] * 5 + ["matmul"]
    assert len(set(ran["pid"])) == len(set(ran["rank"])) == 2
    assert ran.select("operator", "pid", "plan_id").unique().height == 2
    plans = reading.read(events).metadata["plans"]
    assert {str(plan) for plan in ran["plan_id"]} == plans.keys()


def test_a_program_that_cannot_be_run_is_named(prof: Command) -> None:
    _, said = prof("--", "/no/such/program", status=127)
    assert "/no/such/program cannot be run" in said
    _, said = prof("--", sys.executable, "-c", "raise SystemExit(3)", status=3)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "what to profile is not said"),
        (("--pid", os.getpid(), "--", "true"), "two ways"),
        (("--pid", os.getpid(), "--export", "trace.docx"), "the format is not known"),
        (("--pid", os.getpid(), "--summary", "/no/such/folder/perf.csv"), "no folder"),
        (("--pid", os.getpid(), "--duration", "0"), "positive"),
        (("--pid", os.getpid(), "--sample-ms", "0.1", "--duration", "1"), "at least 1 ms"),
        (("--pid", 2**22 + 1), "no process has the number"),
        (("top", "--pid", 2**22 + 1), "no process has the number"),
        (("top", "--pid", os.getpid(), "--interval", "0"), "0.05 to 3600"),
        (("report", "/no/such/file"), "there is no /no/such/file"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_runs(
    prof: Command, words: tuple[object, ...], reason: str
) -> None:
    _, said = prof(*words, status=1)
    assert said.startswith("E_")
    assert reason in said


def test_another_users_process_is_refused(prof: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "owner", lambda _: 1001)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    _, said = prof("--pid", os.getpid(), status=1)
    assert said.startswith(f"E_ATTACH: process {os.getpid()} belongs to another user (1001)")


def test_traces_are_read(prof: Command, program: Program, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    with meanwhile(attached(program, "[step() for _ in range(20)]")):
        prof("--pid", program.pid, "--export", path)
    assert "add x 20" in prof("report", path)[0]
    assert "add" in prof("roofline", path, "--arch", "sm90", "--plot", tmp_path / "roofline.png")[0]
    assert (tmp_path / "roofline.png").stat().st_size > 1000
    assert "add" in prof("stalls", path, "--group-by", "kernel")[0]
    assert "add" in prof("memory", path)[0]
    assert "of 0 kernels with a count of divergent branches, 1 in all" in prof("divergence", path)[0]
    assert prof("advise", path)[0].strip()
    assert "add" in prof("compare", path, path)[0]


def test_top_prints_what_a_process_runs(prof: Command, program: Program) -> None:
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            program.do("step()")

    with meanwhile(go_on):
        try:
            out, _ = prof("top", "--pid", program.pid, "--interval", 0.3, "--once")
        finally:
            over.set()
    assert re.search(rf"process {program.pid}: \d+ % CPU, [1-9]\d* MiB resident, [1-9]\d* threads", out)
    assert "kernels/s" in out
    assert " add " in out


def test_top_goes_on_until_ctrl_c(prof: Command, program: Program) -> None:
    with meanwhile(attached(program, "step()")):
        out, _ = prof("top", "--pid", program.pid, "--interval", 0.1)
    assert " add " in out


COUNTED = """
from tessera import dtypes, profile
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.profiling.session import replay
from tests.unit.runtime.devices.fake import FakeDriver
from tests.unit.runtime.plans.test_device_plan import leaf, plan

TOLD = [{"l2_hit_rate": 0.25, "duration_ns": 3000.0}, {"l2_hit_rate": 0.5, "duration_ns": 1500.0}]

assert replay.current is None
made = plan(FakeDriver())
print("counting" if replay.current else "not counting", flush=True)
if replay.current:
    replay.current = replay.Replay(lambda launch, kernels, device: (launch(), TOLD)[1])
made.run([leaf(1 << 20), scalar_leaf(2.5, dtypes.fp32)])
"""


@pytest.mark.parametrize("asked", [True, False])
def test_only_a_program_that_is_run_to_be_replayed_has_its_kernels_repeated(
    asked: bool, prof: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, events = tmp_path / "script.py", tmp_path / "trace.parquet"
    script.write_text(COUNTED)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root / "src"), str(root)]))
    monkeypatch.setenv("TESSERA_PROFILE_REPLAY", "1")  # of somebody else
    replay = ["--replay"] if asked else []
    out, said = prof(*replay, "--export", events, "--", sys.executable, script)
    assert out == ("counting\n" if asked else "not counting\n")
    assert ("2 of 2 kernels" if asked else "0 of 2 kernels") in said
    if asked:
        assert kernels(events)["l2_hit_rate"].to_list() == [0.25, 0.5]
        assert kernels(events)["dur_ns"].to_list() == [3000, 1500]
        assert re.search("not measured: .*warp_divergence_pct", said)


def test_a_process_at_work_is_not_replayed(prof: Command, program: Program) -> None:
    _, said = prof("--replay", "--pid", program.pid, status=1)
    assert "tessera-prof --replay -- python train.py" in said

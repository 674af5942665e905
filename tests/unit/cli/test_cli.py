"""The command line: commands load lazily, errors have no traceback, `tessera doctor` says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tessera import settings, target
from tessera.cli import examination, main, prof, sizes
from tessera.cli.doctor_gpu import Diagnosis
from tessera.errors import UnsupportedTargetError
from tessera.target.stored_ceilings import store_core
from tests.unit.scheduling.problems import AVX2, ZEN4_CORE


def tessera(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tessera", *arguments], capture_output=True, text=True)


def test_help_names_every_command_and_loads_none() -> None:
    program = (
        "import sys, torch\n"
        "from tessera.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: print('status', end.code)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('tessera.cli.')))\n"
        "print(*sorted({'xdsl', 'llvmlite', 'polars', 'matplotlib'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *help_page, status, commands, heavy = done.stdout.split("\n")[:-1]
    assert all(any(name in line for line in help_page) for name in main.COMMANDS)
    assert (status, commands, heavy) == ("status 0", "tessera.cli.main", "")


PRINT = """
import sys
from tessera.cli import main, prof
words = [["--version"], ["--help"], *([name, "--help"] for name in {names})]
for each in words:
    try: {module}.main(each)
    except SystemExit as end: print("status", end.code, "torch" in sys.modules)
"""


@pytest.mark.parametrize(("module", "names"), [("main", list(main.COMMANDS)), ("prof", list(prof.COMMANDS))])
def test_what_only_prints_does_not_wait_for_torch(module: str, names: list[str]) -> None:
    program = PRINT.format(module=module, names=names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("status")]
    assert found == ["status 0 False"] * (len(names) + 2)


@pytest.mark.parametrize(
    ("module", "command", "known"), [("main", "tessera", "compile"), ("prof", "tessera-prof", "compare")]
)
def test_shells_complete_the_names_of_commands(module: str, command: str, known: str) -> None:
    words = {
        f"_{command.upper().replace('-', '_')}_COMPLETE": "complete_bash",
        "COMP_WORDS": f"{command} com",
        "COMP_CWORD": "1",
    }
    program = f"from tessera.cli.{module} import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | words, check=False
    )
    assert (done.stdout.split(), done.stderr) == ([known], "")


def test_an_unknown_command_ends_with_status_2() -> None:
    done = tessera("docter")
    assert done.returncode == 2
    assert "doctor" in done.stderr


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command `probe`, which prints its arguments."""
    module = ModuleType("tessera.cli.commands.probe")

    def probe(words: list[str], level: int = 0, fail: bool = False) -> None:
        """Print words."""
        if fail:
            raise UnsupportedTargetError("no such machine", hints=["buy one"], where="here:1")
        print(level, *words)

    module.probe = probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(main.COMMANDS, "probe", "Print words.")
    return module


@pytest.mark.usefixtures("command")
def test_a_command_gets_its_arguments_as_they_were_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["probe", "--level", "3", "a", "-", "b c"])
    assert end.value.code == 0
    assert capsys.readouterr().out == "3 a - b c\n"


@pytest.mark.usefixtures("command")
def test_help_of_a_command_is_the_commands_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["probe", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "tessera probe" in out
    assert "--level" in out


@pytest.mark.usefixtures("command")
def test_an_error_is_printed_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["probe", "--fail", "a"])
    assert end.value.code == 1
    assert capsys.readouterr().err == "E_UNSUPPORTED_TARGET: no such machine\nat here:1\nhint: buy one\n"


def test_every_finding_that_is_not_ok_says_what_to_do() -> None:
    found = examination.examine({"TESSERA_THREAD": "2"})
    sections = {"versions", "cpu", "threads", "caches", "gpu", "counters", "environment"}
    assert {section for section, _ in found} == sections
    assert [finding for _, finding in found if finding.state != "ok" and not finding.remedy] == []
    assert "TESSERA_THREAD" in [finding.subject for section, finding in found if section == "environment"]


def test_doctor_prints_all_findings_and_succeeds_here() -> None:
    done = tessera("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for subject in ("Python", "torch", "CPU", "kernel threads", "OpenMP", "tuning cache", "GPU"):
        assert f" {subject} " in done.stdout
    # Brackets are no markup.
    assert "[tensorboard]'" in done.stdout or re.search(r"tensorboard +│ ok", done.stdout)


def test_a_cpu_that_is_not_supported_is_broken() -> None:
    old = replace(target.detect(), features=frozenset(("sse2",)), name="Old CPU", machine="x86_64")
    first, *_ = examination.cpu(old)
    assert (first.subject, first.state, first.found) == ("CPU", "broken", "Old CPU lacks AVX2 and FMA")


@pytest.mark.usefixtures("cache_dir")
def test_doctor_says_what_winners_are_kept_under() -> None:
    machine = replace(AVX2, core=None)
    (name,) = [finding.found for finding in examination.cpu(machine) if finding.subject == "winners of"]
    assert name == "x86-256x16-32k-1m"
    store_core(machine, replace(ZEN4_CORE, fma_per_cycle=2))
    for measured, found in ((True, f"{name}-2fma"), (False, name)):
        with settings.override(core_facts=measured):
            assert [finding.found for finding in examination.cpu(machine)][-1] == found


def test_a_broken_finding_ends_doctor_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Diagnosis("torch", "broken", "not installed", "install it")
    monkeypatch.setattr(examination, "examine", lambda environment: [("versions", broken)])
    with pytest.raises(SystemExit) as end:
        main.main(["doctor"])
    assert end.value.code == 1
    assert "install it" in capsys.readouterr().out


def test_a_cache_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    assert examination.cache("c", folder) == Diagnosis("c", "ok", f"{folder}: empty, made when first needed")

    (folder / "a").mkdir(parents=True)
    (folder / "a" / "one").write_bytes(bytes(1024))
    (folder / "two").write_bytes(bytes(512))
    assert f"{folder}: 2 files, 1.5 KiB; " in examination.cache("c", folder).found


def test_a_cache_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = examination.cache("c", tmp_path / "file" / "objects")
    assert found.state == "absent"
    assert "TESSERA_CACHE_DIR" in found.remedy


def test_ceilings_are_reported_once_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "stored_ceilings", lambda: None)
    assert examination.ceilings().state == "absent"

    known = target.Ceilings("znver4", "CPU", "measured", (target.ComputeCeiling("fp32", 1, 1.5e11),), (), "2025-01-01")
    monkeypatch.setattr(examination, "stored_ceilings", lambda: known)
    assert examination.ceilings() == Diagnosis(
        "ceilings", "ok", "measured 2025-01-01, 150 GFLOP/s in fp32 on one thread"
    )


def test_openmp_that_is_switched_off_is_no_fault() -> None:
    with settings.override(openmp=False):
        found = {finding.subject: finding for finding in examination.threads({})}
    assert found["OpenMP"].state == "ok"
    assert "TESSERA_OPENMP is off" in found["OpenMP"].found


def test_more_threads_than_processors_are_pointed_out() -> None:
    with settings.override(threads=10_000):
        found = {finding.subject: finding for finding in examination.threads({"TESSERA_THREADS": "10000"})}
    assert found["kernel threads"].found == "10000 (TESSERA_THREADS)"
    assert "OMP_NUM_THREADS=" in found["oversubscription"].remedy


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (3 * 2**40, "3 TiB")]
)
def test_sizes_are_written_with_their_unit(count: int, text: str) -> None:
    assert sizes.size(count) == text

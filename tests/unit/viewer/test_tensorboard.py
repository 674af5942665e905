"""The viewer in a real TensorBoard."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera.profiling.export.formats import parquet
from tests.unit.viewer.made import whole_run

pytest.importorskip("tensorboard", reason="tensorboard is not installed (the extra tensorboard has it)")
ENTRY = "[tensorboard_plugins]\ntessera = tessera.viewer.tensorboard:TesseraPlugin\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder of two runs and an empty one."""
    for name in ("exp1", "exp2", "none"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    parquet.write(whole_run(), tmp_path / "logs" / "exp1" / "a.parquet")
    parquet.write(whole_run(), tmp_path / "logs" / "exp2" / "a.parquet")
    return tmp_path / "logs"


@pytest.fixture
def address(logs: Path, tmp_path: Path) -> Iterator[str]:
    """TensorBoard on these logs, below a prefix."""
    path = [str(each) for each in sys.path]
    installed = importlib.metadata.entry_points(group="tensorboard_plugins", name="tessera")
    if not installed:  # of sources that were installed before the plugin was among them
        information = tmp_path / "plugin" / "plugin-0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 0\n")
        (information / "entry_points.txt").write_text(ENTRY)
        path.insert(0, str(information.parent))
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command += ["--path_prefix=/x", "--load_fast=false"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stderr is not None
        said = []
        for line in running.stderr:
            said.append(line)
            found = re.search(r"http://[^ ]*:(\d+)/x", line)
            if found is not None:
                break
        else:
            pytest.fail("".join(said))
        yield f"http://127.0.0.1:{found[1]}/x/"
        running.terminate()


def test_two_runs_are_seen_in_its_tab_in_its_theme(browser: Any, address: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and b'"enabled":true' not in listed(address):
        time.sleep(0.5)
    context = browser.new_context()
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{address}#tessera")
    frame = page.frame_locator("iframe").first
    frame.locator("main[data-ready=overview]").wait_for(timeout=60_000)
    names = frame.locator("select").first.locator("option").all_inner_texts()
    assert [name.rpartition("/")[2] for name in names] == ["exp1", "exp2"]
    frame.locator("nav a", has_text="Kernels").click()
    frame.locator("main[data-ready=kernels]").wait_for(timeout=60_000)
    assert frame.locator("td[data-column=kernel]").count() == 5
    frame.get_by_label("search names").fill("^(mat|soft)")
    frame.locator("header span", has_text="3 of 5 rows").wait_for(timeout=60_000)
    page.evaluate("document.body.classList.add('dark-mode')")
    frame.locator("html[data-theme=dark]").wait_for(timeout=60_000)
    assert said == []
    context.close()


def listed(address: str) -> Any:
    """What TensorBoard says of its plugin."""
    with urllib.request.urlopen(f"{address}data/plugins_listing", timeout=60) as answer:
        told = answer.read().decode()
    return (
        re.sub(r"\s", "", told[told.index('"tessera"') :].partition("}}")[0]).encode() if '"tessera"' in told else b""
    )


def test_looking_for_traces_keeps_nobody_waiting(tmp_path: Path) -> None:
    from tessera.viewer.tensorboard import TesseraPlugin

    class Context:
        logdir = str(tmp_path)

    plugin = TesseraPlugin(Context())
    assert plugin.is_active() is False
    parquet.write(whole_run(), tmp_path / "a.parquet")
    plugin._looked = -10.0
    deadline = time.monotonic() + 60
    while not plugin.is_active() and time.monotonic() < deadline:
        plugin._looked = -10.0
        time.sleep(0.05)
    assert plugin.is_active()


@pytest.mark.parametrize("folder", ["", "gs://bucket/logs"])
def test_a_folder_elsewhere_is_refused_with_a_sentence(folder: str) -> None:
    from tessera.viewer.tensorboard import TesseraPlugin
    from tests.unit.viewer.asking import asked

    class Context:
        logdir = folder

    application = TesseraPlugin(Context()).get_plugin_apps()["/api/*"]
    status, _, body = asked(application, "/data/plugin/tessera/api/runs")
    assert status == 422
    assert b"local --logdir" in body

"""The report in one file, and the front end's modules as one script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from tessera import profile
from tessera.cli.profiling import html as prof_html
from tessera.errors import ProfileError
from tessera.profiling.export.formats import parquet
from tessera.profiling.trace.table import Trace, frame
from tessera.viewer import assets, one_file
from tessera.viewer.pages import answers
from tessera.viewer.runs import run_of
from tests.unit.profiling.support import run, two_step_plan
from tests.unit.viewer.asking import answered, viewer_of
from tests.unit.viewer.made import HOSTILE, whole_run

PLAIN_BYTES, PACKED_BYTES, SMALL_REPORT_BYTES = 180_000, 60_000, 400_000


def held(page: str) -> dict[str, Any]:
    """What a report embeds."""
    found = re.search(r'<script type="application/json" id="tessera-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    told: dict[str, Any] = json.loads(found[1])
    return told


def test_a_report_holds_what_the_server_answers() -> None:
    told = held(one_file.text([run_of(whole_run(), "run 0"), run_of(whole_run(), "run 1")]))
    application = viewer_of(whole_run(), whole_run())
    for question in answers.ANSWERS:
        assert told["answers"][f"{question}?run=1"] == answered(application, f"/api/{question}?run=1")
    assert told["answers"]["compare?a=0&b=1"] == answered(application, "/api/compare?a=0&b=1")
    assert sorted(told["columns"]) == ["0", "1"]


def test_a_policy_allows_the_one_script_alone() -> None:
    page = one_file.text([run_of(whole_run(), "run")])
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    script_policy = f"script-src 'sha256-{digest}'"
    rest = "style-src 'unsafe-inline'; img-src data:; worker-src blob:"
    assert policy == f"default-src 'none'; {script_policy}; {rest}"
    assert not re.search(r'(src|href)="(?!data:,)', page.partition("<script>")[0])


def test_names_cannot_leave_their_script() -> None:
    page = one_file.text([run_of(whole_run(HOSTILE), HOSTILE[1])])
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "\u2028" not in page
    assert {row[0] for row in held(page)["answers"]["kernels?run=0"]["rows"]} == set(HOSTILE)


def test_errors_of_a_page_are_kept_for_it() -> None:
    told = held(one_file.text([run_of(Trace(frame({}).lazy()), "empty")]))
    assert told["answers"]["roofline?run=0"]["error"]["code"] == "E_ARGUMENT"
    assert told["answers"]["overview?run=0"]["kernels"] == 0


def test_a_session_writes_itself_and_an_exporter_does(tmp_path: Path) -> None:
    with profile.session(exporters=[profile.html(tmp_path / "b.html")]) as session:
        run(two_step_plan(), 3)
    assert session.html(tmp_path / "a.html") == tmp_path / "a.html"
    for name in ("a", "b"):
        told = held((tmp_path / f"{name}.html").read_text())
        assert sum(row[3] for row in told["answers"]["kernels?run=0"]["rows"]) == 6


def test_a_report_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="the report could not be written"):
        one_file.write([run_of(whole_run(), "run")], tmp_path / "none" / "x.html")


def test_the_command_writes_beside_the_trace_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet.write(whole_run(), tmp_path / "a.parquet")
    parquet.write(whole_run(), tmp_path / "b.parquet")
    prof_html.html(tmp_path / "a.parquet", compare=tmp_path / "b.parquet")
    assert "wrote" in capsys.readouterr().out
    assert len(held((tmp_path / "a.html").read_text())["answers"]["runs?"]) == 2
    with pytest.raises(ProfileError, match="holds 2 runs"):
        prof_html.html(tmp_path)


def test_what_names_people_can_be_left_out(tmp_path: Path) -> None:
    found = whole_run()
    stack = frame({"kind": ["kernel"], "start_ns": [0], "dur_ns": [5], "stack": ["/home/me/secret.py:3"]})
    found = Trace(stack.lazy(), {**found.metadata, "thread_names": {"7": "me"}})
    path = one_file.write([run_of(found, "run")], tmp_path / "a.html", redact=True)
    assert not re.search("node7|secret|thread_names", path.read_text())


def test_of_many_slices_the_longest_are_in_the_file_and_the_sums_of_all_others() -> None:
    told = held(one_file.text([run_of(whole_run(), "run")], most_slices=10))
    body = base64.b64decode(told["columns"]["0"])
    head = json.loads(body[8 : 8 + int.from_bytes(body[4:8], "little")])
    assert head["total"] == 400
    assert head["summed"] >= 399
    assert sum(row[3] for row in told["answers"]["kernels?run=0"]["rows"]) == 200


def test_the_front_end_and_small_reports_stay_small() -> None:
    size = len(assets.bundle()) + len(assets.files()["app.css"])
    assert size <= PLAIN_BYTES
    assert len(zlib.compress(assets.bundle().encode())) + len(zlib.compress(assets.files()["app.css"])) <= PACKED_BYTES
    assert len(one_file.text([run_of(whole_run(), "run")])) <= SMALL_REPORT_BYTES


def test_texts_reach_the_page_as_texts_alone() -> None:
    for name, content in assets.files().items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", content.decode()), name


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"main.js": "import { a } from './b.js';", "b.js": "import { c } from './main.js';"}, "circle"),
        ({"main.js": "import * as b from './b.js';", "b.js": ""}, "not in a form"),
        ({"main.js": "import { a as c } from './b.js';", "b.js": ""}, "not in a form"),
        ({"main.js": "export default 3;"}, "not in a form"),
    ],
)
def test_modules_that_cannot_be_joined_are_refused(
    modules: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "files", lambda: {name: text.encode() for name, text in modules.items()})
    with pytest.raises(ValueError, match=message):
        assets.bundle.__wrapped__("main.js")

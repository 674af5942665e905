"""The local server: whom it answers, and how it ends."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.cli.profiling import view
from tessera.errors import ArgumentError
from tessera.profiling.export.formats import parquet
from tessera.viewer.server import POLICY, Guard, serving
from tests.unit.viewer.asking import asked, viewer_of
from tests.unit.viewer.made import whole_run

HOST = "127.0.0.1:5000"


@pytest.fixture
def guard() -> Guard:
    return Guard(viewer_of(whole_run()), [HOST])


def cookie_of(guard: Guard) -> str:
    status, headers, _ = asked(guard, f"/?token={guard.token}", HTTP_HOST=HOST)
    assert (status, headers["Location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=Strict"} <= set(headers["Set-Cookie"].split("; "))
    return headers["Set-Cookie"].partition(";")[0]


def test_the_token_becomes_a_cookie_that_opens_all_pages(guard: Guard) -> None:
    cookie = cookie_of(guard)
    status, headers, body = asked(guard, "/", HTTP_HOST=HOST, HTTP_COOKIE=cookie)
    assert (status, headers["Content-Security-Policy"]) == (200, POLICY)
    assert b"app.js" in body
    assert asked(guard, "/api/runs", HTTP_HOST=HOST, HTTP_COOKIE=cookie)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"HTTP_COOKIE": "tessera-0=wrong"},
        {"HTTP_COOKIE": '"; ;=\x01'},
        {"HTTP_HOST": "evil.example:5000"},
        {"HTTP_HOST": "127.0.0.1:5001"},
        {"HTTP_ORIGIN": "http://evil.example"},
        {"HTTP_ORIGIN": "null"},
    ],
)
def test_others_are_refused(guard: Guard, headers: dict[str, str]) -> None:
    allowed = {} if "HTTP_COOKIE" in headers or not headers else {"HTTP_COOKIE": cookie_of(guard)}
    for path in ("/", "/api/runs", "/app.js", "/main.js"):
        status, told, body = asked(guard, path, **{"HTTP_HOST": HOST, **allowed, **headers})
        assert (status, told["Content-Security-Policy"]) == (403, POLICY)
        assert b"200" not in body


@pytest.mark.parametrize("token", ["", "wrong", "\u00e9"])
def test_a_wrong_token_opens_nothing(guard: Guard, token: str) -> None:
    assert asked(guard, f"/?token={token}", HTTP_HOST=HOST)[0] == 403


@pytest.fixture
def address() -> Iterator[str]:
    server, address = serving(viewer_of(whole_run()), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield address
    server.shutdown()
    server.server_close()


def test_requests_beside_each_other_are_answered(address: str) -> None:
    place = address.removeprefix("http://").partition("/")[0]
    waiting = http.client.HTTPConnection(place)  # holds a connection and asks for nothing
    waiting.connect()
    asking = http.client.HTTPConnection(place, timeout=120)
    asking.request("GET", "/api/runs")
    assert asking.getresponse().status == 403
    asking.close()
    waiting.close()


def test_only_the_loopback_interface_is_listened_at(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")


def test_the_command_prints_its_address_and_ends_when_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    parquet.write(whole_run(), path)
    program = "from tessera.cli.prof import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
    command = [sys.executable, "-c", program, "view", str(path), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=[0-9a-f]{32}", running.stdout.readline())
        assert found is not None
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    with socket.socket() as again:
        again.bind(("127.0.0.1", int(found[1])))


def test_where_a_port_is_taken_the_next_free_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server, address = view._listening(viewer_of(whole_run()), "127.0.0.1", port)
        server.server_close()
        assert port < int(address.split(":")[2].partition("/")[0]) < port + view.TRIED
        monkeypatch.setattr(view, "TRIED", 1)
        with pytest.raises(ArgumentError, match="cannot be listened at"):
            view._listening(viewer_of(whole_run()), "127.0.0.1", port)


def test_a_file_that_is_no_trace_ends_the_command(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    path.write_bytes(b"PAR1 and no more")
    program = "from tessera.cli.prof import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "view", str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "E_PROFILE" in done.stderr


def test_a_server_listens_before_numpy_and_analyses_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    parquet.write(whole_run(), path)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tessera.cli.profiling import view\n"
        "(run,) = view.runs_at(Path(sys.argv[1]))\n"
        "print(run.summary()['ranks'])\n"
        "print(*sorted({'torch', 'numpy', 'webbrowser', 'tessera.viewer.pages.questions'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n\n"

"""What all tests share: caches apart from the user's, and golden files that can be rewritten."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tessera import settings
from tests import whole

if find_spec("hypothesis") is not None:  # tests/gpu does without
    from hypothesis import settings as hypothesis_settings

    hypothesis_settings.register_profile("tessera", deadline=None, max_examples=40, derandomize=True)
    hypothesis_settings.load_profile("tessera")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", action="store_true", help="rewrite golden files instead of comparing with them"
    )
    parser.addoption(
        "--whole", action="store_true", help="run also the cases that `make test` leaves to `make whole` (marked whole)"
    )


def pytest_configure(config: pytest.Config) -> None:
    whole.set_whole(config.getoption("--whole"))
    # Before anything reads the settings, and inherited by the processes that tests start.
    for name in [name for name in os.environ if name.startswith("TESSERA_")]:
        del os.environ[name]
    # Threads of OpenMP that wait for others spin, on processors that those need where other processes of pytest run: a
    # product of 32 x 64 by 64 x 32 takes a millisecond of a busy machine then, and 36 microseconds where they sleep.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    # Where the environment has Python keep no bytecode, every process that a test starts compiles all sources anew,
    # which takes it a second, and every worker of xdist rewrites the assertions of all tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ.pop("COLUMNS", None)  # tables are printed for no terminal, also in workers of xdist, which sets this
    folder = tempfile.TemporaryDirectory(prefix="tessera-tests-")
    config.add_cleanup(folder.cleanup)
    # A shell's background job ignores Ctrl-C, and so would the processes that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TESSERA_CACHE_DIR"] = folder.name
    os.environ["XDG_RUNTIME_DIR"] = folder.name  # where processes listen to be profiled
    # What was measured on one kind of CPU does not decide what tests see on another.
    os.environ["TESSERA_TUNE_SHIPPED"] = "0"
    os.environ["TESSERA_CORE_FACTS"] = "0"


@pytest.hookimpl(trylast=True)  # after folders' own hooks, which mark cases
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves cases marked whole, more of what other cases show already, to `make whole`, or to whoever names them."""
    named = any("::" in each for each in config.args)
    if config.getoption("--whole") or named:
        return
    left = [item for item in items if item.get_closest_marker("whole")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("whole")]


def pytest_collection_finish() -> None:
    """Has the collector of cycles pass over libraries and tests, half a million objects that stay, from now on."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before fixtures, which draw too
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Has each test draw the same numbers, whichever tests its process ran before, and no two tests alike."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for all caches of one test, in this process and in those it starts."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(folder))
    with settings.override(cache_dir=folder):
        yield folder


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(text, name)` compares a text with the file `goldens/name` beside the test, or rewrites that file."""

    def compare(text: str, name: str) -> None:
        path = Path(request.path).parent / "goldens" / name
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} does not exist: run pytest --update-goldens"
        assert text == path.read_text(), f"{path} differs: look at the difference, then run pytest --update-goldens"

    return compare

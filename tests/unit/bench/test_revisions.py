"""Two revisions of the sources, measured in turn: which sources a worker runs, and what is told of the times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.environments import NotMeasuredError
from bench.revisions import AFTER, BEFORE, CONTROL, ROOT, Row, cells, checkout, row, worker
from bench.timing import Batch, Samples


def test_a_worker_runs_the_sources_that_it_is_given(tmp_path: Path) -> None:
    sources = tmp_path / "src" / "tessera"
    sources.mkdir(parents=True)
    (sources / "__init__.py").write_text("raise RuntimeError('the sources of before')")
    process = worker(BEFORE, tmp_path, 1, tmp_path / "caches")
    with pytest.raises(NotMeasuredError, match="the sources of before"):
        process.ask(do="micro", contender="tessera node", name="tessera node")
    process.close()


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="no git checkout")
def test_a_checkout_goes_at_the_end() -> None:
    with checkout("HEAD") as folder:
        assert (folder / "src" / "tessera" / "op.py").exists()
    assert not folder.exists()


def samples(seconds: float, kept: int) -> Samples:
    found = Samples()
    for _ in range(kept):
        found.add(Batch(seconds, contended=False))
    return found


def test_ratios_are_times_over_those_of_the_sources_as_they_are() -> None:
    found = row("product", {BEFORE: samples(3e-3, 5), AFTER: samples(2e-3, 4), CONTROL: samples(2.2e-3, 6)})
    assert found.batches == 4
    assert cells([found])[0] == ("product", "3 ms", "2 ms", "1.500", "1.100", "4")


def test_the_slowest_comes_first_and_the_mean_last() -> None:
    rows = [Row(str(ratio), {BEFORE: ratio, AFTER: 1.0, CONTROL: 1.0}, 5) for ratio in (2.0, 0.5)]
    assert [line[0] for line in cells(rows)] == ["0.5", "2.0", "geometric mean of 2"]
    assert cells(rows)[-1][3:5] == ("1.000", "1.000")

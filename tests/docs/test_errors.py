"""docs/errors.md: every code has a cause, an example that raises it, and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tessera import errors, settings
from tests import forked
from tests.docs.snippets import ROOT
from tests.unit.sharding.job.nursery import Nursery, nursery

PAGE = ROOT / "docs" / "errors.md"

ALONE = """
from tessera.errors import TesseraError
try:
    exec({text!r}, {{"__name__": "__main__"}})
except TesseraError as error:
    print(error.code)
"""


@dataclass(frozen=True)
class Entry:
    """What the page says of a code."""

    code: str
    text: str
    example: str

    @property
    def place(self) -> str:
        """Where the example runs: "here", "alone" in a process of its own, or in "ranks"."""
        if "In a job of two ranks:" in self.text:
            return "ranks"
        return "alone" if "In a program of its own:" in self.text else "here"


def entries() -> list[Entry]:
    """The entries of the page, in order."""
    parts = re.split(r"^##+ (E_[A-Z_]+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = []
    for code, text in zip(parts[::2], parts[1::2], strict=True):
        examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert len(examples) == 1, f"{code} has {len(examples)} examples"
        found.append(Entry(code, text, examples[0]))
    return found


ENTRIES = entries()


@pytest.fixture(scope="module")
def forks() -> Iterator[Nursery]:
    """What starts ranks."""
    with nursery() as made:
        yield made


def codes(kind: type[errors.TesseraError] = errors.TesseraError) -> set[str]:
    """The codes that there are."""
    ours = {kind.code} if kind.__module__ == errors.__name__ else set()
    return ours.union(*(codes(each) for each in kind.__subclasses__()))


def test_every_code_has_an_entry_and_no_other() -> None:
    listed = [entry.code for entry in ENTRIES]
    assert len(listed) == len(set(listed))
    assert set(listed) == codes()


def test_every_entry_has_a_cause_and_a_remedy() -> None:
    assert [each.code for each in ENTRIES if "**Cause:** " not in each.text or "**Remedy:** " not in each.text] == []


@pytest.mark.parametrize("entry", [each for each in ENTRIES if each.place == "here"], ids=lambda entry: entry.code)
def test_an_example_raises_its_code(entry: Entry) -> None:
    from torch._dynamo.exc import BackendCompilerFailed  # seconds, which those who only collect tests save

    code = compile(entry.example, str(PAGE), "exec")
    with pytest.raises((errors.TesseraError, BackendCompilerFailed)) as raised:
        exec(code, {"__name__": "__main__"})
    error = raised.value
    error = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
    assert isinstance(error, errors.TesseraError)
    assert error.code == entry.code


@pytest.mark.parametrize("entry", [each for each in ENTRIES if each.place == "alone"], ids=lambda entry: entry.code)
def test_an_example_raises_its_code_in_a_program_of_its_own(entry: Entry, tmp_path: Path) -> None:
    done = forked.run(ALONE.format(text=entry.example), warm=True)
    assert done.stdout.split() == [entry.code], done.stderr


@pytest.mark.parametrize("entry", [each for each in ENTRIES if each.place == "ranks"], ids=lambda entry: entry.code)
def test_an_example_raises_its_code_in_a_rank(entry: Entry, forks: Nursery) -> None:
    changes = {"collective_timeout_s": settings.current().collective_timeout_s}
    outcome = forks.run(2, "page", changes, text=entry.example)
    told = [line["code"] for rank in range(2) for line in outcome.said(rank)]
    assert entry.code in told, outcome.err

"""What README, CONTRIBUTING and docs/ name is there: files, names, codes, variables, commands and their options."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tessera import errors, op
from tessera.cli import main, prof, run_passes
from tests.docs.snippets import ROOT
from tools.site.sources import MADE

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGE = ROOT / "src" / "tessera"
GPU_FILES = {"gpu_launch.md", "gpu_matmul.md", "gpu_tuning.md", "gpu_correctness_steps.md"}
"""What `bench/gpu.sh` writes."""
FOREIGN = {"train.py", "script.py", "cli/commands/NAME.py", *GPU_FILES}
"""Files of the reader's, and those."""
BUILT = {"build/site", "dist/"}
"""Folders that `make` makes."""
NOT_OURS = {"graph.library", "schedule.kernel", "schedule.tile"}
"""Operations of the IR, which begin as modules do."""

Found = tuple[str, str]
"""Where on a page, and what stands there."""


def _lines() -> Iterator[Found]:
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            # Rows of names of other libraries, with ours beside them, are run (`test_coming_from.py`).
            if page.parent.name != "coming-from" or not line.startswith("| "):
                yield f"{page.name}:{number}", line


def _spans() -> Iterator[Found]:
    """What stands between backticks."""
    return ((place, span) for place, line in _lines() for span in re.findall(r"`([^`]+)`", line))


@functools.cache
def _sources() -> str:
    files = [path for folder in ("src", "bench", "tools", "tests") for path in (ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text() for path in files if path != Path(__file__))


@functools.cache
def _inner() -> dict[str, list[Path]]:
    """What there is inside of the root's folders, by its last name: names are looked up by the hundred."""
    found: dict[str, list[Path]] = {}
    for folder in ("src", "bench", "tests", "docs"):
        for path in (ROOT / folder).rglob("*"):
            found.setdefault(path.name, []).append(path)
    return found


def _ends(name: str) -> Iterator[Path]:
    """What is inside of the root's folders and has a path with this end."""
    parts = Path(name).parts
    if "*" in name:
        return (path for folder in ("src", "bench", "tests", "docs") for path in (ROOT / folder).rglob(name))
    return (path for path in _inner().get(parts[-1], ()) if path.parts[-len(parts) :] == parts)


@functools.cache
def _is_file(name: str) -> bool:
    """Whether `name` is a path from the root or the package, or the end of one inside of these."""
    if (ROOT / name).exists() or (PACKAGE / name).exists() or ("*" in name and any(ROOT.glob(name))):
        return True
    return any(True for _ in _ends(name))


def test_files_exist() -> None:
    pattern = re.compile(r"(?<![\w./~$-])[\w./*-]+\.(?:py|md|mlir)\b")
    named = {(place, name) for place, span in (*_spans(), *_inside()) for name in pattern.findall(span)}
    assert len(named) > 400
    missing = [(place, name) for place, name in sorted(named) if name not in FOREIGN and not _is_file(name)]
    assert missing == []


def _is_folder(name: str) -> bool:
    """Whether `name` is a folder of the root or the package, or the end of one inside of these."""
    if (ROOT / name).is_dir() or (PACKAGE / name).is_dir():
        return True
    return any(path.is_dir() for path in _ends(name.rstrip("/")))


INSIDE = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
"""The pages for those who change Tessera."""


def _inside() -> Iterator[Found]:
    """What stands between backticks on those pages, and in what packages say of themselves."""
    names = tuple(f"{page.name}:" for page in INSIDE)
    yield from ((place, span) for place, span in _spans() if place.startswith(names))
    for path in sorted(PACKAGE.rglob("__init__.py")):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        yield from ((path.parent.name, span) for span in re.findall(r"`([^`]+)`", said))


def test_folders_exist() -> None:
    name = r"(?<![\w./~$<@-])[a-z_][\w-]*"  # npm's packages begin with @
    pattern = re.compile(rf"{name}(?:/[\w-]+)*/(?![\w.*<{{-])|{name}(?:/[\w-]+)+(?![\w./-])")
    named = [(place, found) for place, span in _inside() for found in pattern.findall(span)]
    assert len(named) > 80
    assert [each for each in named if each[1] not in BUILT and not _is_folder(each[1])] == []


def test_classes_exist() -> None:
    pattern = re.compile(r"(?<![\w.\"'<])[A-Z][a-z]\w*")
    named = [(place, name) for place, span in _inside() for name in pattern.findall(span)]
    assert len(named) > 60
    known = {*re.findall(r"(?m)^\s*class (\w+)", _sources()), *re.findall(r"(?m)^([A-Z]\w+)(?:: \w+)? = ", _sources())}
    known |= {*vars(builtins), "HolisticTraceAnalysis"}  # another project
    assert [each for each in named if each[1] not in known] == []


def _resolves(dotted: str) -> bool:
    found: object = importlib.import_module("tessera")
    path = "tessera"
    for part in dotted.split("."):
        path = f"{path}.{part}"
        try:
            found = getattr(found, part) if hasattr(found, part) else importlib.import_module(path)
        except ImportError:
            return False
    return True


def test_names_of_doors_and_modules_resolve() -> None:
    doors = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    pattern = re.compile(r"(?<![\w./-])(tessera\.)?([a-z_]+(?:\.[A-Za-z_]\w*)+)(?![\w.]*/)")
    # What begins with `torch.` is torch's: Tessera's door of that name is written in full.
    found = ((place, *groups) for place, span in _spans() for groups in pattern.findall(span))
    named = {(place, name) for place, whole, name in found if whole or not name.startswith("torch.")}
    ours = {(place, name) for place, name in named if name.partition(".")[0] in doors and not _is_file(name)}
    assert len(ours) > 50
    own = re.compile(r"\.(json|csv|png|py|md|prom|parquet|synchronize)$")  # `stream.synchronize()` is that of a stream
    assert [
        each for each in sorted(ours) if not (each[1] in NOT_OURS or own.search(each[1]) or _resolves(each[1]))
    ] == []


def test_identifiers_exist() -> None:
    """Names with an underscore, of whatever they are: functions, attributes, columns, knobs."""
    foreign = {"load_state_dict", "_kernel_trace", "_memory_copy_trace", "_counter_collection"}
    stems = {path.stem for folder in ("src", "tests", "bench") for path in (ROOT / folder).rglob("*.py")}
    known = set(re.findall(r"\w+", _sources())) | stems | foreign | {Path(name).stem for name in FOREIGN}
    named = {(place, name) for place, span in _spans() for name in re.findall(r"\b\w*[a-z]_[a-z]\w*", span)}
    assert len(named) > 250
    assert [each for each in sorted(named) if each[1] not in known] == []


def test_error_codes_exist() -> None:
    def codes(kind: type[errors.TesseraError]) -> set[str]:
        return {kind.code}.union(*(codes(each) for each in kind.__subclasses__()))

    known = codes(errors.TesseraError)
    named = [(place, code) for place, line in _lines() for code in re.findall(r"\bE_[A-Z_]+\b", line)]
    assert len(named) > 20
    assert [each for each in named if each[1] not in known] == []


def test_variables_and_targets_of_make_exist() -> None:
    variables = {(place, name) for place, line in _lines() for name in re.findall(r"\bTESSERA_[A-Z_]+", line)}
    assert len(variables) > 20
    assert [each for each in sorted(variables) if f'"{each[1]}"' not in _sources()] == []
    makefile = (ROOT / "Makefile").read_text()
    targets = {(place, name) for place, text in _commands() for name in re.findall(r"^make ([a-z]+)", text)}
    assert len(targets) > 5
    assert [each for each in sorted(targets) if not re.search(rf"^{each[1]}:", makefile, re.MULTILINE)] == []


def test_passes_rules_and_other_hyphenated_names_exist() -> None:
    names = {(place, span) for place, span in _spans() if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", span)}
    assert len(names) > 20
    assert [each for each in sorted(names) if each[1] not in _sources() + (ROOT / "pyproject.toml").read_text()] == []


def test_passes_of_pipelines_exist() -> None:
    pipelines = {
        (place, text) for place, line in _lines() for text in re.findall(r"--pass-pipeline ([a-z][\w,{}=-]+)", line)
    }
    assert pipelines
    for place, text in pipelines:
        assert set(re.sub(r"\{[^}]*\}", "", text).split(",")) <= set(run_passes.PASSES), place


def _commands() -> Iterator[Found]:
    """Commands that the pages tell readers to run: spans, and lines, with those that continue them."""
    yield from _spans()
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for number, line in enumerate(text.splitlines(), start=1):
            yield f"{page.name}:{number}", line.strip().removeprefix("$ ").partition("   #")[0]


def _options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


@functools.cache
def _command(program: str, name: str) -> Any:
    """A command of `tessera` or of `tessera-prof`, as it is when it runs."""
    if program == "tessera":
        found = getattr(importlib.import_module(f"tessera.cli.commands.{name}"), name)
    else:
        module = f"tessera.cli.profiling.{prof.COMMANDS[name][0]}" if name else prof.__name__
        found = getattr(importlib.import_module(module), name or "record")
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    application = typer.Typer(add_completion=False)
    application.command()(found)
    return typer.main.get_command(application)


def _wrong(text: str) -> list[str]:
    """Commands and options of a command line that there are not."""
    words = shlex.split(text.partition(" &")[0])
    program = words.pop(0)
    words = words[: words.index("--")] if "--" in words else words
    scripts = [place for place, word in enumerate(words) if word.endswith(".py")]
    words = words[: scripts[0]] if scripts and program == "tessera" else words  # what follows is the script's
    known = main.COMMANDS if program == "tessera" else prof.COMMANDS
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    if name in ("...", "COMMAND") or (program == "tessera" and not name):
        return []
    if name and name not in known:
        return [name]
    command = _command(program, name)
    if hasattr(command, "commands") and words and re.match(r"[a-z]", words[0]):
        if words[0] not in command.commands:
            return [words[0]]
        command = command.commands[words.pop(0)]
    asked = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [option for option in asked if option not in _options(command)]


def test_commands_and_their_options_exist() -> None:
    pattern = re.compile(r"^(?:\.venv/bin/)?(tessera(?:-prof)? [a-z-].*)$")
    parts = ((place, part) for place, text in _commands() for part in text.split(" | "))
    found = {(place, line) for place, part in parts for line in pattern.findall(part)}
    prose = {
        each
        for each in found
        if each[1].startswith(("tessera-prof: ", "tessera run: ")) or each[1].endswith((".", ","))
    }
    lines = sorted(found - prose)
    assert len(lines) > 40
    assert [(place, line, _wrong(line)) for place, line in lines if _wrong(line)] == []


def test_every_operator_has_its_line() -> None:
    page = (ROOT / "docs" / "operators.md").read_text()
    assert [name for name in op.__all__ if not re.search(rf"\b{name}\b", page)] == []


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_lead_to_files_and_headings() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    inside = [(page, *link.partition("#")[::2]) for page, link in links if not link.startswith("http")]
    assert len(inside) > 50
    for page, name, anchor in inside:
        target = page.parent / name if name else page
        made = any(target.resolve().is_relative_to(ROOT / "docs" / folder) for folder in MADE)
        if made and not target.exists():
            continue  # a page that is made with the site, whose links `test_site.py` follows
        assert target.exists(), (page.name, name)
        assert not anchor or anchor in _anchors(target), (page.name, name, anchor)

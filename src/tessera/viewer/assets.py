"""The front end's files, by name; and as one script for pages that may load none."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from tessera.system.sources import resource

TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

SCRIPT: Final = "app.js"

_IMPORT: Final = re.compile(r"^import \{ (\w+(?:, \w+)*) \} from '\./(\w+\.js)';$", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) (\w+))", re.MULTILINE)


@cache
def files() -> dict[str, bytes]:
    """The files that there are, by name."""
    found = {each.name: each.read_bytes() for each in resource("viewer/web").iterdir()}
    return {name: content for name, content in found.items() if "." + name.rpartition(".")[2] in TYPES}


def content(name: str) -> bytes | None:
    """What a page gets for a name, None where there is nothing. The modules as one script are `SCRIPT`: a request for
    each of them takes a page longer than all of them together.
    """
    return bundle().encode() if name == SCRIPT else files().get(name)


def content_type(name: str) -> str:
    """What a file's ending says of it."""
    return TYPES["." + name.rpartition(".")[2]] + "; charset=utf-8"


@cache
def bundle(main: str = "main.js") -> str:
    """The module `main` and all that it imports as one script, each module a function of its own.

    Modules keep to three rules, so that this is all there is to it: an import is `import { a, b } from './x.js';` on a
    line of its own, an export stands before what it names, and imports have no circles. Raises ValueError where one is
    broken.
    """
    ordered: list[str] = []
    _visit(main, (), ordered)
    return "'use strict';\nconst modules = {};\n" + "\n".join(map(_function, ordered))


def _visit(module: str, around: tuple[str, ...], ordered: list[str]) -> None:
    if module in around:
        raise ValueError(f"imports in a circle: {' -> '.join((*around, module))}")
    if module in ordered:
        return
    for _, imported in _IMPORT.findall(_text(module)):
        _visit(imported, (*around, module), ordered)
    ordered.append(module)


def _text(module: str) -> str:
    return files()[module].decode()


def _function(module: str) -> str:
    """A module as a function that gives its exports."""
    exported = ", ".join(_EXPORT.findall(_text(module)))
    body = _EXPORT.sub("", _IMPORT.sub(r"const { \1 } = modules['\2'];", _text(module)))
    left = re.search(r"^(import|export)\b.*", body, re.MULTILINE)
    if left is not None:
        raise ValueError(f"{module}: not in a form that can be joined: {left[0]}")
    return f"modules['{module}'] = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"

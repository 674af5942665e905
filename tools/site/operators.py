"""The reference of operators, a page for each theme: signatures, docstrings, examples with their results."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from tessera import op
from tessera.doors.protocols.methods import METHODS

LINE: Final = 88
"""The longest signature in one line."""

INDEX: Final = """# Operators, one by one

{count} operators in {themes} themes. Every entry has the signature, shapes, dtypes, what is raised, and an example,
whose result the tests compute anew. `help(op.matmul)` prints the same.

What each runs as, says [operators](../../operators.md). Dtypes: "floats" are fp16, bf16, fp32 and fp64.

| theme | operators |
| --- | --- |
{rows}

```{{toctree}}
:hidden:

{pages}
```
"""


def by_theme() -> dict[ModuleType, list[str]]:
    """The names of `op`, by the module of `doors/` that defines them."""
    found: dict[str, list[str]] = {}
    for name in op.__all__:
        function = getattr(op, name)
        found.setdefault(function.__module__, []).append(name)
    modules = [importlib.import_module(each) for each in sorted(found)]
    return {module: sorted(found[module.__name__]) for module in modules}


def pages() -> Mapping[str, str]:
    """The pages by name: one for each theme, and the index."""
    themes = by_theme()
    made = {f"{_stem(module)}.md": _page(module, names) for module, names in themes.items()}
    rows = "\n".join(
        f"| [{title(module)}]({_stem(module)}.md) | {' '.join(f'`{name}`' for name in names)} |"
        for module, names in themes.items()
    )
    toctree = "\n".join(_stem(module) for module in themes)
    count = sum(map(len, themes.values()))
    made["index.md"] = INDEX.format(count=count, themes=len(themes), rows=rows, pages=toctree)
    return made


def title(module: ModuleType) -> str:
    """What a theme is called: the first words of its docstring."""
    text = (inspect.getdoc(module) or "").split("\n\n")[0].replace("\n", " ")
    return re.split(r"[.:,](?:\s|$)", text, maxsplit=1)[0].replace("`@op.", "`op.")


def _stem(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _page(module: ModuleType, names: list[str]) -> str:
    about = escaped(inspect.getdoc(module) or "")
    return "\n\n".join([f"# {title(module)}", about, *map(entry, names)]) + "\n"


def entry(name: str) -> str:
    """The entry of one operator."""
    function = getattr(op, name)
    parts = [f"## {name}", fenced("python", signature(name, function))]
    if function.__name__ != name and inspect.isfunction(function):
        parts.append(f"Another name of [`{function.__name__}`](#{function.__name__}).")
    if METHODS.get(name) is function:
        parts.append(f"Also a method: `x.{name}(...)`.")
    return "\n\n".join([*parts, body(inspect.getdoc(function) or "")])


def signature(name: str, function: Callable[..., Any]) -> str:
    """`op.name(...) -> Tensor`, in a line or with a parameter on each."""
    found = inspect.signature(function)
    whole = f"op.{name}{found}".replace("'", "")
    if len(whole) <= LINE:
        return whole
    parameters = [str(each).replace("'", "") for each in found.parameters.values()]
    keyword = next((i for i, each in enumerate(found.parameters.values()) if each.kind is each.KEYWORD_ONLY), None)
    if keyword is not None and not any(each.kind is each.VAR_POSITIONAL for each in found.parameters.values()):
        parameters.insert(keyword, "*")
    lines = "".join(f"    {each},\n" for each in parameters)
    return f"op.{name}(\n{lines}) -> {found.return_annotation}".replace("'", "")


def body(doc: str) -> str:
    """A docstring as Markdown: what it says of shapes, dtypes and errors as a list, its example as a block."""
    parts = []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith(">>>"):
            parts.append(fenced("pycon", paragraph))
        elif paragraph.startswith(("Shapes: ", "Dtypes: ")):
            parts.append(_facts(paragraph.replace("\n", " ")))
        else:
            parts.append(escaped(paragraph))
    return "\n\n".join(parts)


def _facts(text: str) -> str:
    """What begins with "Shapes: ... Dtypes: ... Raises ..." as a list."""
    pieces = re.split(r"\s*(?=\b(?:Shapes:|Dtypes:|Raises) )", text)
    lines = []
    for piece in filter(None, pieces):
        label, _, rest = piece.partition(" ")
        lines.append(f"- **{label.rstrip(':').lower()}:** {linked(escaped(rest))}")
    return "\n".join(lines)


def linked(text: str) -> str:
    """Text that was escaped, with its codes of errors leading to what the index of errors says."""
    return re.sub(r"\bE(?:\\_[A-Z]+)+\b", lambda code: f"[{code[0]}](../../errors.md#{_place(code[0])})", text)


def _place(code: str) -> str:
    return code.replace("\\", "").lower()


def escaped(text: str) -> str:
    """A docstring's text as Markdown: stars and brackets are themselves, but inside of code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if index % 2 else re.sub(r"([*_\[\]<>|])", r"\\\1", piece) for index, piece in enumerate(pieces)
    )


def fenced(language: str, text: str) -> str:
    """A block of code."""
    return f"```{language}\n{text}\n```"

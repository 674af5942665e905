"""The compiler's front step: what `import tessera` installs. The compiler itself, and xdsl with it, is loaded by the first
evaluation of an unknown expression.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.lazy.node import Node


def evaluate(nodes: Sequence[Node]) -> None:
    """Evaluates nodes that have no plan yet."""
    from tessera.compiler import pipeline

    pipeline.evaluate(nodes)


def inspect(node: Node, level: str) -> str:
    """The text of a level of the compiler for a node's expression."""
    from tessera.compiler import inspection

    return inspection.inspect_structure(node.structure, level)

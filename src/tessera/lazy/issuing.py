"""`stream=`: handing an expression to a stream at the call that makes it. The compiler installs what does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from tessera.errors import CompileError
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import Node

Issuer: TypeAlias = Callable[[Sequence[Node], Any], None]
IssuerInto: TypeAlias = Callable[[Node, Leaf, Any], None]
N = TypeVar("N", bound=Node)


def _refuse(nodes: Sequence[Node], stream: Any) -> None:
    raise CompileError(
        f"{len(nodes)} tensors for {stream!r}, and no compiler is installed", hints=["from tessera import op"]
    )


def _refuse_into(node: Node, target: Leaf, stream: Any) -> None:
    _refuse((node,), stream)


_issuer: Issuer = _refuse
_issuer_into: IssuerInto = _refuse_into


def set_issuers(issuer: Issuer, into: IssuerInto) -> tuple[Issuer, IssuerInto]:
    """Installs the functions that plan nodes and enqueue their computation, and gives those they replace.

    The first stores in each node a leaf whose value is on its way (see `lazy/promise.py`); the second writes the value
    of one node to memory of the user.
    """
    global _issuer, _issuer_into
    previous = _issuer, _issuer_into
    _issuer, _issuer_into = issuer, into
    return previous


def on(node: N, stream: Any | None) -> N:
    """The node as it is without a stream, else with its computation enqueued there."""
    return node if stream is None else issue(node, stream)


def issue(node: N, stream: Any) -> N:
    """The node, with its computation enqueued on a stream (a `runtime.streams.Stream`).

    Raises what planning raises, InputMutatedError (E_INPUT_MUTATED), DeviceError (E_DEVICE) for operands on another
    device than the stream's, and StreamRaceError (E_STREAM_RACE).
    """
    _issuer((node,), stream)
    return node


def issue_all(nodes: Sequence[Node], stream: Any) -> None:
    """Enqueues the computation of several nodes as one piece of work; raises as `issue` does."""
    _issuer(nodes, stream)


def issue_into(node: Node, target: Leaf, stream: Any) -> None:
    """Enqueues the computation of a node into memory of its shape and dtype; raises as `issue` does."""
    _issuer_into(node, target, stream)

"""Calls of torch's operators, as graphs hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class NodeOperand:
    """The place of an operand's value among those that a call is given."""

    place: int


class TorchCall:
    """A call of `function` whose arguments are numbers, lists and the like, and `NodeOperand`s: a function of these."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]) -> None:
        self.function, self.arguments, self.options = function, tuple(arguments), options
        self._plain = not options and self.arguments == tuple(map(NodeOperand, range(len(arguments))))

    def __call__(self, *values: Any) -> Any:
        """The result, of the values of operands."""
        if self._plain:
            return self.function(*values)
        arguments = [filled(each, values) for each in self.arguments]
        return self.function(*arguments, **{name: filled(each, values) for name, each in self.options.items()})


def filled(template: Any, values: Sequence[Any]) -> Any:
    """An argument with the values of its operands."""
    if isinstance(template, NodeOperand):
        return values[template.place]
    if isinstance(template, list | tuple):
        return [filled(each, values) for each in template]
    if isinstance(template, slice):
        return slice(*(filled(each, values) for each in (template.start, template.stop, template.step)))
    return template


def call_of(node: fx.Node) -> TorchCall:
    """The call of a node, of the values of its operands in the order of `all_input_nodes`."""
    places: dict[fx.Node, Any] = {operand: NodeOperand(place) for place, operand in enumerate(node.all_input_nodes)}
    arguments: Any = fx.map_arg(node.args, places.__getitem__)
    options: Any = fx.map_arg(node.kwargs, places.__getitem__)
    return TorchCall(torch_function(node), arguments, dict(options))


def torch_function(node: fx.Node) -> Callable[..., Any]:
    """torch's function for a node. Where strides differ from those that the graph was traced with, no view may exist
    of which one was.
    """
    target: Callable[..., Any] = _RESHAPED.get(node.target, node.target)
    return target


_RESHAPED: dict[Any, Any] = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.reshape.default,
}

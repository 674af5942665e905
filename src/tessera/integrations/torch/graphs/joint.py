"""What is done to the graph of a forward and a backward pass before it is cut in two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition

from tessera.integrations.torch.graphs.operators import log_softmax_gradient
from tessera.integrations.torch.graphs.randomness import remake_masks

aten = torch.ops.aten


def partition(joint: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph, by torch's cut of least memory."""
    _read_scores(joint.graph)
    joint.recompile()
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    remake_masks(forward, backward, options["num_fwd_outputs"])
    return forward, backward


def _read_scores(graph: fx.Graph) -> None:
    """Gradients of log_softmax read what it read, which is there anyway, so that a loss needs no matrix of logarithms.
    Where the program returns these, they are there already.
    """
    returned = {_origin(node) for node in graph.output_node().all_input_nodes}
    for node in graph.find_nodes(op="call_function", target=aten._log_softmax_backward_data.default):
        grad, logarithms, axis, dtype = node.args
        logarithms = _origin(logarithms)
        if logarithms.target is not aten._log_softmax.default or logarithms in returned:
            continue
        scores = logarithms.args[0]
        if scores.meta["val"].dtype != dtype:
            continue
        with graph.inserting_before(node):
            made = graph.call_function(log_softmax_gradient, (grad, scores, axis))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _origin(node: Any) -> Any:
    """What a node is the same tensor as."""
    while node.target in (aten.detach.default, aten.alias.default):
        node = node.args[0]
    return node

"""What torch calls: the backend by its name, with AOTAutograd between Dynamo's graphs and ATen's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.utils._python_dispatch import _disable_current_modes

from tessera.integrations.torch.graphs.decompositions import decompositions
from tessera.integrations.torch.graphs.graph import CompiledGraph
from tessera.integrations.torch.graphs.joint import partition
from tessera.integrations.torch.graphs.resizing import with_sums
from tessera.integrations.torch.options import CompileOptions, options_of

Observer = Callable[[CompiledGraph], object]


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's: the function that `torch.compile(..., backend="tessera")` calls.

    Raises ArgumentError (E_ARGUMENT) for unknown options and modes.
    """
    return compiled(module, example_inputs, options_of(options, mode))


def compiled(
    module: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, observer: Observer | None = None
) -> Callable[..., Any]:
    """As `backend`; `observer` is told of each graph of ATen operators."""
    return aot_autograd(**stages_of(options, observer))(with_sums(module), example_inputs)


def stages_of(options: CompileOptions, observer: Observer | None = None) -> dict[str, Any]:
    """What AOTAutograd is told: a compiler for each kind of graph, decompositions, how a joint graph is cut."""
    return {
        "fw_compiler": partial(_compile, options=options, kind="forward", observer=observer),
        "bw_compiler": partial(_compile, options=options, kind="backward", observer=observer),
        "inference_compiler": partial(_compile, options=options, kind="inference", observer=observer),
        "decompositions": decompositions(options.random),
        "partition_fn": partition,
        "keep_inference_input_mutations": True,
    }


def _compile(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CompileOptions,
    kind: str,
    observer: Observer | None,
) -> CompiledGraph:
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    frozen: Sequence[int] = ()
    exact: int | None = None
    if metadata is not None and kind == "inference" and options.freeze:
        frozen = metadata.static_input_indices or ()
    if metadata is not None and kind == "forward":
        exact = metadata.num_forward_returns
    with _disable_current_modes():  # rows make tensors of numbers, which would be fake ones while torch traces
        graph = CompiledGraph(module, options, frozen, exact)
    if observer is not None:
        observer(graph)
    return graph


def register() -> None:
    """Makes torch know the backend by name where the package's entry point does not, as in a tree that was installed
    before there was one.
    """
    if "tessera" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(backend, name="tessera")

"""Dropout, taken apart by where its random numbers come from: `options={"random": ...}`.

With "philox" the mask is a function of a seed, which is drawn of torch's generator, and of numbers of elements: kernels
make it where they need it, and the gradient makes it again. With "torch" it is what eager torch draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from tessera.integrations.torch.options import Random

aten = torch.ops.aten

_library: Any = torch.library.Library("tessera", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("dropout_mask(Tensor seed, SymInt[] size, float p) -> Tensor")


def _fake(seed: Tensor, size: Sequence[int], p: float) -> Tensor:
    return seed.new_empty(size, dtype=torch.bool)


_library.impl("dropout_mask", _fake, "Meta")

dropout_mask = torch.ops.tessera.dropout_mask.default
"""Which elements of a tensor of some size are kept where each is left out with probability p."""


def computes_mask(function: Callable[..., Tensor]) -> None:
    """Sets what `dropout_mask` is where no partition computes it."""
    _library.impl("dropout_mask", function, "CompositeExplicitAutograd")


def _dropout(x: Tensor, p: float, train: bool | None, kept: Callable[[Tensor, float], Tensor]) -> tuple[Tensor, Tensor]:
    if not train or p == 0:
        return x, torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = kept(x, p)
    return mask * x * (1.0 / (1.0 - p)), mask


def _by_seed(x: Tensor, p: float) -> Tensor:
    seed = torch.randint(0, (1 << 62), (), dtype=torch.int64, device=x.device)
    mask: Tensor = dropout_mask(seed, x.shape, p)
    return mask


def _by_torch(x: Tensor, p: float) -> Tensor:
    return aten.bernoulli.p(x, 1.0 - p).to(torch.bool)  # type: ignore[no-any-return]


def _drawn_alone(draw: Callable[..., Tensor]) -> Callable[..., Any]:
    """As `rand_like` of a tensor: the same numbers, which wait for nothing that the tensor is computed of."""

    def apart(x: Tensor, *, dtype: torch.dtype | None = None, memory_format: Any = None, **options: Any) -> Any:
        if not x.is_contiguous() or memory_format not in (None, torch.preserve_format, torch.contiguous_format):
            return NotImplemented
        return draw(x.shape, dtype=dtype or x.dtype, device=x.device)

    return apart


def decompositions(random: Random) -> dict[Any, Callable[..., Any] | None]:
    """How operators that draw random numbers are taken apart; None of those that are not."""
    alone: dict[Any, Callable[..., Any] | None] = {
        aten.rand_like.default: _drawn_alone(torch.rand),
        aten.randn_like.default: _drawn_alone(torch.randn),
    }
    if random == "philox":
        return {**alone, aten.native_dropout.default: lambda x, p, train: _dropout(x, p, train, _by_seed)}
    if random == "torch":
        return {
            **alone,
            aten.native_dropout.default: lambda x, p, train: _dropout(x, p, train, _by_torch),
            aten.bernoulli.default: None,
            aten.bernoulli.p: None,
        }
    return alone


def remake_masks(forward: fx.GraphModule, backward: fx.GraphModule, kept: int) -> None:
    """Masks that a forward graph saves, behind `kept` results, are made again of their seeds in the backward graph."""
    result = forward.graph.output_node()
    outputs: list[Any] = list(result.args[0])  # type: ignore[arg-type]
    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    found = False
    for place, saved in enumerate(outputs[kept:], kept):
        if not isinstance(saved, fx.Node) or saved.target is not dropout_mask:
            continue
        seed, size, p = cast(tuple[Any, Any, Any], saved.args)
        read = placeholders.get(saved.name)
        if read is None or any(isinstance(extent, fx.Node) for extent in size):
            continue
        outputs[place] = seed
        with backward.graph.inserting_after(max(placeholders.values())):
            made = backward.graph.call_function(dropout_mask, (read, size, p))
        made.meta = dict(read.meta)
        read.replace_all_uses_with(made, delete_user_cb=lambda user, own=made: user is not own)
        read.meta = {**read.meta, "val": seed.meta["val"]}
        found = True
    if found:
        result.args = (tuple(outputs),)
        for module in (forward, backward):
            module.graph.lint()
            module.recompile()

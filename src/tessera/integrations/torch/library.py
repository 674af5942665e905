"""Tessera's operators as torch's own: `tessera::name` on the CPU, with fake results, gradients and a rule for `vmap`.

An operator is a function written with `op.*` and a schema. Dynamo and `torch.export` keep its call in their graphs; it
runs as the lazy expression does, as a kernel or several. Its gradient is an operator in its turn (`tessera::name_vjp`),
by the rules of the expression's operators, so that graphs of gradients have it, too; it has no gradient itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch

from tessera.errors import ArgumentError
from tessera.integrations.torch.autograd import cotangents_of

Function: TypeAlias = Callable[..., Any]
"""Tensors and numbers -> a lazy tensor."""

Fake: TypeAlias = Callable[..., torch.Tensor]
"""The same arguments, as fake tensors -> a fake result."""

_library: Any = torch.library.Library("tessera", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str, function: Function, fake: Fake, batched: Sequence[str] = ()) -> Any:
    """Registers `tessera::name` and gives it. `schema` has the name first: "silu(Tensor x) -> Tensor".

    `batched` names the operands before whose dimensions others may stand: `vmap` along these is one call. Raises
    ArgumentError (E_ARGUMENT) for a name that is taken.
    """
    name = schema.partition("(")[0].strip()
    if hasattr(torch.ops.tessera, name):
        raise ArgumentError(f"tessera::{name} is there already", hints=["choose another name"])
    _library.define(schema)
    target = getattr(torch.ops.tessera, name).default
    parameters = target._schema.arguments
    tensors = [place for place, parameter in enumerate(parameters) if "Tensor" in str(parameter.type)]
    signature = schema[schema.index("(") + 1 : schema.rindex(")")]
    _library.define(f"{name}_vjp(Tensor cotangent, {signature}) -> Tensor[]")
    vjp = getattr(torch.ops.tessera, f"{name}_vjp").default

    def value(*given: Any) -> torch.Tensor:
        with torch.no_grad():  # below autograd, which looks after gradients
            result: torch.Tensor = function(*given).torch()
        # torch does not allow an operand's memory for a result.
        owned = any(each is not None and each.data_ptr() == result.data_ptr() for each in _picked(given, tensors))
        return result.clone() if owned else result.contiguous()

    def cotangents(cotangent: torch.Tensor, *given: Any) -> list[torch.Tensor]:
        places = [place for place in tensors if place < len(given)]
        found = cotangents_of(
            lambda *leaves: [function(*leaves)], [_detached(each) for each in given], places, [cotangent.detach()]
        )
        return [
            torch.zeros_like(given[place]) if found[place] is None else cast(torch.Tensor, found[place]).clone()
            for place in places
            if given[place] is not None
        ]

    def fake_cotangents(cotangent: torch.Tensor, *given: Any) -> list[torch.Tensor]:
        return [
            torch.empty_like(each, memory_format=torch.contiguous_format)
            for each in _picked(given, tensors)
            if each is not None
        ]

    def keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.others = [None if place in tensors else each for place, each in enumerate(inputs)]
        ctx.save_for_backward(*[inputs[place] for place in tensors if place < len(inputs)])

    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[Any, ...]:
        given = list(ctx.others)
        places = [place for place in tensors if place < len(given)]
        for place, each in zip(places, ctx.saved_tensors, strict=True):
            given[place] = each
        found = iter(vjp(cotangent, *given))
        results: list[Any] = [None] * len(given)
        for place in places:
            results[place] = None if given[place] is None else next(found)
        asked = (*ctx.needs_input_grad, *[False] * len(given))  # it has those alone that the caller named
        return tuple(part if needed else None for part, needed in zip(results, asked, strict=False))

    def over_a_batch(info: Any, in_dims: Sequence[int | None], *given: Any) -> tuple[torch.Tensor, int]:
        dims = [*in_dims, *[None] * (len(given) - len(in_dims))]
        moved = [each if dim is None else each.movedim(dim, 0) for each, dim in zip(given, dims, strict=True)]
        if {parameters[place].name for place, dim in enumerate(dims) if dim is not None} == set(batched):
            return target(*moved), 0
        rows = [
            target(*[each if dim is None else each[row] for each, dim in zip(moved, dims, strict=True)])
            for row in range(info.batch_size)
        ]
        return torch.stack(rows), 0

    _library.impl(name, value, "CPU")
    _library.impl(f"{name}_vjp", cotangents, "CPU")
    torch.library.register_fake(f"tessera::{name}", fake, lib=_library)
    torch.library.register_fake(f"tessera::{name}_vjp", fake_cotangents, lib=_library)
    torch.library.register_autograd(f"tessera::{name}", backward, setup_context=keep, lib=_library)
    torch.library.register_vmap(f"tessera::{name}", over_a_batch, lib=_library)
    return target


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _picked(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [values[place] if place < len(values) else None for place in places]


def custom_op(function: Function | None = None, *, schema: str | None = None, fake: Fake | None = None) -> Any:
    """Makes a function of tensors, written with `op.*` or with operators of `tessera.extend`, an operator of torch's,
    `torch.ops.tessera.name`: in graphs of Dynamo and `torch.export`, with a gradient, and for `vmap`.

    The schema is that of the annotations (`torch.Tensor`, `float`, ...), or `schema`. Without `fake` the result has the
    shape and dtype of the first argument. Raises ArgumentError (E_ARGUMENT) for a name that is taken.
    """
    if function is None:
        return lambda function: custom_op(function, schema=schema, fake=fake)
    said = schema or torch.library.infer_schema(function, mutates_args=())
    text = said if said.partition("(")[0].strip() else f"{function.__name__}{said}"
    return define(text, function, fake or like_the_first)


def like_the_first(x: torch.Tensor, *others: Any) -> torch.Tensor:
    """A fake result of the first argument's shape and dtype."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)

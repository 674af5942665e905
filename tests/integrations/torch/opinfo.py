"""torch's own samples of its operators, through the backend: `python -m tests.integrations.torch.opinfo` runs all.

Each sample is traced once, forward and, of floats, backward; what is traced is run by Tessera and by torch, with the
same random numbers. Results must agree in value, dtype, shape and strides. With `--references` nothing is compiled:
what rows write down is computed by the references of records, which takes a tenth of the time and finds all that is
wrong with a row, though nothing that is wrong with a kernel.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function
from torch.utils._pytree import tree_flatten, tree_unflatten

from tessera.integrations.torch.backend import stages_of
from tessera.integrations.torch.graphs.graph import CompiledGraph
from tessera.integrations.torch.mapping import MAPPING
from tessera.integrations.torch.options import CompileOptions
from tessera.integrations.torch.partitions.partition import BackendWarning
from tessera.lazy import evaluation
from tessera.ops import oracle
from tests.integrations.torch.opinfo_record import Found, Record

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.bool,
)

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""How far results may be apart, in units of the largest one."""

UNDEFINED = frozenset(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"))
"""Operators whose values are whatever memory holds."""

MAPPED = frozenset(target._overloadpacket.__name__ for target in MAPPING if hasattr(target, "_overloadpacket"))


@dataclass(frozen=True)
class Case:
    """One sample of one operator in one dtype."""

    info: Any
    dtype: torch.dtype
    number: int
    sample: Any

    def __str__(self) -> str:
        return f"{self.info.formatted_name}[{self.number}] {self.dtype}"


def operators() -> Sequence[Any]:
    """torch's descriptions of its operators. To import them takes seconds, which those who only collect tests save."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: Sequence[Any] = op_db
    return found


def is_mapped(info: Any) -> bool:
    """Whether the operator itself has a row: others may be made of such."""
    return info.aten_name in MAPPED


def cases(info: Any, dtype: torch.dtype) -> Iterator[Case]:
    """torch's samples of an operator."""
    if dtype not in info.supported_dtypes("cpu") or info.name in UNDEFINED:
        return
    differentiable = dtype.is_floating_point and dtype in info.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    for number, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=differentiable)):
        yield Case(info, dtype, number, sample)


def drawn(dtype: torch.dtype, count: int, seed: int) -> list[Case]:
    """So many samples of mapped operators, of each at most one before another gets a second."""
    chance = random.Random(f"{seed} {dtype}")
    infos = [info for info in operators() if is_mapped(info)]
    chance.shuffle(infos)
    found: list[Case] = []
    while len(found) < count and infos:
        for info in list(infos):
            samples = list(cases(info, dtype))
            if not samples:
                infos.remove(info)
                continue
            found.append(chance.choice(samples))
            if len(found) == count:
                break
    return found


def outcome(case: Case) -> Found:
    """What was found of a sample. Raises AssertionError where results differ."""
    flat, spec = tree_flatten((case.sample.input, case.sample.args, case.sample.kwargs))
    places = [place for place, value in enumerate(flat) if isinstance(value, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> list[Any]:
        whole = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            whole[place] = tensor
        first, rest, named = tree_unflatten(whole, spec)
        result = case.sample.output_process_fn_grad(case.info.op(first, *rest, **named))
        return [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)]

    tensors = [flat[place] for place in places]
    both = Both()
    traced = aot_function(call, **both.stages)
    reference = {**both.stages, **dict.fromkeys(("fw_compiler", "bw_compiler", "inference_compiler"), _by_torch)}
    try:
        call(*[_fresh(tensor) for tensor in tensors])
        _run(traced, tensors)  # traces, which may draw random numbers
        expected = _run(traced, tensors)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError, AssertionError):
        return Found("refused")  # the last where torch cannot trace a layout, or has the operator on GPUs alone
    both.is_ours = True
    found = _run(traced, tensors)
    assert len(found) == len(expected)
    try:
        for got, wanted in zip(found, expected, strict=True):
            _compare(got, wanted, wanted)
    except AssertionError:
        if case.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise
        compare, wider = (_compare_errors, _doubled) if case.dtype is torch.float32 else (_compare, _widened)
        try:
            exact_ones = _run(aot_function(call, **reference), [wider(tensor) for tensor in tensors])
        except (RuntimeError, ValueError, TypeError):  # not every sample can be wider: some name their dtype
            exact_ones = expected
        for got, wanted, exact in zip(found, expected, exact_ones, strict=True):
            compare(got, wanted, exact)
    fallbacks = {f"{each.call.split(' of ')[0]}: {each.reason}" for graph in both.graphs for each in graph.fallbacks}
    ours = any(graph.partition_count for graph in both.graphs)
    kind = ("partly" if ours else "torch") if fallbacks else ("native" if ours else "views")
    return Found(kind, tuple(sorted(fallbacks)))


class Both:
    """Compilers of one trace for torch and for Tessera, of which `is_ours` says whose runs."""

    def __init__(self) -> None:
        self.graphs: list[CompiledGraph] = []
        self.is_ours = False
        self.stages = stages_of(CompileOptions(), self.graphs.append)
        del self.stages["keep_inference_input_mutations"]
        for kind in ("fw_compiler", "bw_compiler", "inference_compiler"):
            self.stages[kind] = partial(self._compile, self.stages[kind])

    def _compile(self, compiler: Callable[..., Any], module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        theirs = _by_torch(module, inputs)
        ours: Callable[..., Any] | Exception
        try:
            ours = compiler(module, inputs)
        except Exception as error:  # noqa: BLE001 - raised where Tessera's turn comes, and not mistaken for torch's
            ours = error

        def run(arguments: list[Any]) -> Any:
            if not self.is_ours:
                return theirs(arguments)
            if isinstance(ours, Exception):
                raise ours
            return ours(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]  # as torch marks functions that take a list
        return run


def _by_torch(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    def run(arguments: list[Any]) -> Any:
        return module(*arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # as torch marks functions that take a list
    return run


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of 16-bit floats in 32 bits: what partitions hold between their operators."""
    if tensor.dtype not in (torch.float16, torch.bfloat16):
        return tensor
    return tensor.detach().float().requires_grad_(tensor.requires_grad)


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of 32-bit floats in 64 bits."""
    if tensor.dtype is not torch.float32:
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _run(function: Callable[..., list[torch.Tensor]], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Results, and then the gradients of what can have one, for cotangents that differ from element to element."""
    torch.manual_seed(0)
    inputs = [_fresh(tensor) for tensor in tensors]
    results = function(*inputs)
    roots = [result for result in results if result.requires_grad]
    if roots:
        torch.autograd.backward(roots, [_cotangent(root) for root in roots])
    return [*(result.detach() for result in results), *(tensor.grad for tensor in inputs)]


def _cotangent(result: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape).to(result.dtype)


def _compare(got: torch.Tensor | None, wanted: torch.Tensor | None, exact: torch.Tensor | None) -> None:
    """Each element is as torch has it, or as it is without roundings and overflows between operators."""
    if wanted is None or got is None or exact is None:
        assert got is wanted
        return
    assert _kind(got) == _kind(wanted)
    tolerance = TOLERANCE.get(wanted.dtype)
    if tolerance is None:
        assert torch.equal(
            *(torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in (got, wanted))
        )
        return
    finite = wanted[wanted.isfinite()].abs().double() if wanted.numel() else wanted
    largest = float(finite.max()) if finite.numel() else 0.0
    most = tolerance * largest
    better = torch.isclose(got, exact.to(wanted.dtype), rtol=tolerance, atol=most, equal_nan=True)
    torch.testing.assert_close(got, torch.where(better, got, wanted), rtol=tolerance, atol=most, equal_nan=True)


def _compare_errors(got: torch.Tensor | None, wanted: torch.Tensor | None, exact: torch.Tensor | None) -> None:
    """Where terms cancel, 32 bits hold few digits of a result: ours may be at most three times as wrong as torch's."""
    if wanted is None or got is None or exact is None or not wanted.dtype.is_floating_point:
        _compare(got, wanted, exact)
        return
    assert _kind(got) == _kind(wanted)
    finite = wanted.isfinite()
    assert torch.equal(got[~finite].nan_to_num(), wanted[~finite].nan_to_num())
    error, own = ((each.double() - exact.double())[finite].abs() for each in (got, wanted))
    largest = float(exact[finite].abs().max()) if error.numel() else 0.0
    most = TOLERANCE.get(wanted.dtype, 0.0) * largest
    assert not error.numel() or float(error.max()) <= max(3 * float(own.max()), most), (
        f"{error.max()}, torch {own.max()}"
    )


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    """What has to be the same; of tensors without elements torch's own strides differ from those that it promises."""
    return tensor.dtype, tensor.shape, tensor.stride() if tensor.numel() else None


def main() -> int:
    """Runs the samples of all operators in all dtypes, or of those named. Gives how many are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="names of torch's; by default all")
    parser.add_argument("--dtype", action="append", choices=[_name(each) for each in DTYPES])
    parser.add_argument("--most", type=int, default=sys.maxsize, help="samples of an operator in a dtype")
    parser.add_argument("--mapped", action="store_true", help="only operators that have a row themselves")
    parser.add_argument("--references", action="store_true", help="rows alone, by the references of records")
    parser.add_argument("--record", type=Path, help="file of what was found, which a later run goes on from")
    parser.add_argument("--fallbacks", type=int, default=0, help="so many of what torch computes most often are told")
    chosen = parser.parse_args()
    if chosen.references:
        evaluation.set_evaluator(oracle.evaluate)
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", BackendWarning)
    record = Record(chosen.record)
    names = chosen.dtype or [_name(each) for each in DTYPES]
    for name in names:
        for info in operators():
            is_named = not chosen.operators or not {info.name, info.formatted_name}.isdisjoint(chosen.operators)
            if not is_named or (chosen.mapped and not is_mapped(info)):
                continue
            for case in list(islice(cases(info, getattr(torch, name)), chosen.most)):
                if (info.formatted_name, name, case.number) not in record:
                    found = _found(case)
                    record.add(info.formatted_name, name, case.number, found)
                    if found.error:
                        print(f"{case}: {found.error}", flush=True)
    print(record.totals(names))
    for reason, count in record.reasons().most_common(chosen.fallbacks):
        print(f"{count} {reason}")
    return record.wrong


def _found(case: Case) -> Found:
    try:
        return outcome(case)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
        return Found("wrong", error=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    sys.exit(min(main(), 1))

"""Attention on CPUs: whatever blocks are drawn, the lowered kernel computes what the reference does in float64."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tessera.dtypes import DType, bf16, bool_, fp16, fp32, fp64
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse, print_module
from tessera.ir.verification import verify
from tessera.ops import OPERATORS
from tessera.scheduling.families.attention.lowering import lower_attention
from tessera.scheduling.families.attention.parts import joining_spec, partial_spec
from tessera.scheduling.families.attention.space import AttentionProblem, default_schedule, scratch_bytes, space
from tessera.scheduling.families.rows.lowering import lower_map_reduce
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import AttentionSpec
from tests.unit.scheduling import specs
from tests.unit.scheduling.problems import AVX2, AVX512
from tests.whole import examples

EXTENTS = st.integers(1, 20)
BLOCKS = st.tuples(st.sampled_from((3, 8, 16)), st.sampled_from((5, 8, 16)), st.sampled_from((2, 4, 6)))
LANES = st.sampled_from(("queries", "head"))


def lowered(
    spec: AttentionSpec,
    tile: tuple[int, int] = (8, 8),
    micro: tuple[int, int] = (4, 4),
    lanes: str = "queries",
    parallel: str = "queries",
    pairs: bool = False,
) -> ModuleOp:
    """The kernel under a schedule of small blocks, for vectors of four fp32; `pairs`: of a CPU that multiplies them."""
    schedule = Schedule(tile=tile, micro=micro, lanes=lanes, head=(32, 32), parallel=parallel, fusion=True)
    module = lower_attention(spec, schedule, 16, pairs)
    verify(module)
    return module


def operands(
    queries: int, keys: int, head: int, value_head: int, dtype: DType, mask: DType | None
) -> list[torch.Tensor]:
    """Q, K and V with rows apart, and a mask."""
    generator = torch.Generator().manual_seed(queries * 31 + keys)
    shapes = [(2, queries, head), (2, keys, head), (2, keys, value_head)]
    made = [torch.randn(*shape[:-1], shape[-1] + 3, generator=generator)[..., : shape[-1]] for shape in shapes]
    tensors = [x.to(dtype.torch) for x in made]
    if mask is not None:
        drawn = torch.randn(queries, keys, generator=generator)
        tensors.append(drawn > 0 if mask is bool_ else drawn.to(mask.torch))
    return tensors


def run(module: ModuleOp, tensors: list[torch.Tensor], scale: float, seed: int) -> torch.Tensor:
    """What the interpreter makes of a kernel in poisoned memory."""
    q, k, v, *mask = tensors
    out = torch.full((*q.shape[:-1], v.shape[-1]), float("nan"), dtype=q.dtype)
    run_kernel(module, [q, k, v, scale, *mask, out], partition=random.Random(seed))
    return out


def reference(tensors: list[torch.Tensor], scale: float, causal: bool) -> torch.Tensor:
    """The record's reference in float64."""
    wide = [x if x.dtype == torch.bool else x.double() for x in tensors]
    factor = torch.tensor(scale, dtype=torch.float64)
    result: torch.Tensor = OPERATORS["flash_attention"].reference(*wide[:3], factor, *wide[3:], causal=causal)
    return result


@settings(max_examples=examples(15, 30))
@given(EXTENTS, EXTENTS, EXTENTS, EXTENTS, BLOCKS, LANES, st.booleans(), st.sampled_from((None, bool_, fp32)))
def test_any_blocks_give_the_weighted_mean(
    queries: int,
    keys: int,
    head: int,
    value_head: int,
    blocks: tuple[int, int, int],
    lanes: str,
    causal: bool,
    mask: DType | None,
) -> None:
    bm, bn, rows = blocks
    module = lowered(specs.attention(fp32, causal=causal, mask=mask), (bm, bn), (rows, 4), lanes)
    tensors = operands(queries, keys, head, value_head, fp32, mask)
    specs.close(run(module, tensors, 0.3, keys), reference(tensors, 0.3, causal), 4.0)


@settings(max_examples=examples(7, 15))
@given(st.integers(1, 6), EXTENTS, EXTENTS, st.integers(1, 5), st.booleans())
def test_parts_of_keys_and_what_joins_them_give_the_weighted_mean(
    queries: int, keys: int, head: int, parts: int, causal: bool
) -> None:
    spec = specs.attention(fp32, causal=causal, mask=bool_)
    partial = lowered(partial_spec(spec), (2, 8), (2, 2), "head", "batch")
    schedule = Schedule(tile=(1, 8), keep=0, ahead=False, nontemporal=False, parallel="outer", fusion=True)
    joining = lower_map_reduce(joining_spec(spec), schedule, 4)
    verify(joining)
    tensors = operands(queries, keys, head, 5, fp32, bool_)
    q, k, v, mask = tensors
    means, logarithms = torch.full((parts, 2, queries, 5), math.nan), torch.full((parts, 2, queries), math.nan)
    out = torch.full((2, queries, 5), math.nan)
    run_kernel(partial, [q, k, v, 0.3, mask, means, logarithms], partition=random.Random(keys))
    run_kernel(joining, [means, logarithms[..., None].expand(means.shape), out])
    specs.close(out, reference(tensors, 0.3, causal), 4.0)


@pytest.mark.parametrize("lanes", ["queries", "head"])
def test_narrow_operands_are_summed_in_fp32(lanes: str) -> None:
    for dtype in (bf16, fp16, fp64):
        tensors = operands(9, 21, 7, 5, dtype, None)
        module = lowered(specs.attention(dtype), lanes=lanes)
        specs.close(run(module, tensors, 0.5, 1), reference(tensors, 0.5, False), 4.0)


@settings(max_examples=examples(7, 15))
@given(EXTENTS, EXTENTS, EXTENTS, EXTENTS, st.booleans(), st.sampled_from((None, bool_, bf16)))
def test_pairs_of_bf16_are_multiplied_as_they_are(
    queries: int, keys: int, head: int, value_head: int, causal: bool, mask: DType | None
) -> None:
    module = lowered(specs.attention(bf16, causal=causal, mask=mask), (32, 6), (4, 16), pairs=True)
    assert 'dtype = "bf16"' in print_module(module)
    tensors = operands(queries, keys, head, value_head, bf16, mask)
    # Weights are rounded to bf16 as well: 2^-9 of each, of values of a few.
    torch.testing.assert_close(
        run(module, tensors, 0.3, keys).double(), reference(tensors, 0.3, causal), atol=2e-2, rtol=2e-2
    )


def test_heads_that_share_keys_are_an_axis_that_keys_do_not_walk() -> None:
    q, k, v = operands(9, 11, 7, 5, fp32, None)
    grouped = torch.stack([q, 2 * q, q - 1], dim=1)
    expected = reference([grouped, k[:, None], v[:, None]], 0.5, False)
    for parallel, lanes in (("batch", "queries"), ("heads", "head")):
        module = lowered(specs.attention(fp32, batch=("b0", "b1"), shared=True), lanes=lanes, parallel=parallel)
        specs.close(run(module, [grouped, k, v], 0.5, 1), expected, 4.0)


def test_the_kernel_survives_its_text() -> None:
    module = lowered(specs.attention(fp32, causal=True, mask=bool_))
    assert print_module(parse(print_module(module))) == print_module(module)


def problem(**changes: object) -> AttentionProblem:
    """Four heads of 512 queries and keys on a machine with AVX-512."""
    fields = {
        "batch": (4,),
        "queries": 512,
        "keys": 512,
        "head": 64,
        "value_head": 64,
        "causal": False,
        "operand": fp32,
        "accumulator": fp32,
        "target": AVX512,
        "workers": 2,
    }
    return AttentionProblem(**{**fields, **changes})  # type: ignore[arg-type]


def test_defaults_are_legal_and_cut_what_there_is() -> None:
    for target in (AVX2, AVX512):
        for shape in ((), (1,), (3,), (2, 5)):
            for queries, keys, head in ((1, 1, 1), (1, 5000, 128), (700, 3, 300), (700, 900, 300), (64, 64, 64)):
                posed = problem(target=target, batch=shape, queries=queries, keys=keys, head=head, value_head=head)
                assert space(posed).violations(default_schedule(posed)) == ()
    assert default_schedule(problem())["parallel"] == "batch"
    assert default_schedule(problem(batch=(3,)))["parallel"] == "queries"
    long = problem(batch=(1,), queries=1, keys=9000)
    assert [default_schedule(replace(long, workers=workers))["parts"] for workers in (1, 2, 8)] == [1, 2, 8]
    assert default_schedule(replace(long, batch=(16,), workers=8))["parts"] == 1


def test_long_blocks_of_queries_pass_through_the_second_cache() -> None:
    """What is walked once a block of keys may be more than the cache holds, up to twice it."""
    cache = max(level.size_bytes or 0 for level in AVX512.memory if level.name == "L2") or 1 << 20
    for head, least in ((64, 1024), (128, 1024), (512, 128)):
        posed = problem(queries=4096, keys=4096, head=head, value_head=head, target=AVX512)
        chosen = default_schedule(posed)
        assert chosen.integers("tile")[0] >= least
        assert scratch_bytes(chosen, posed) <= 2 * cache
        assert space(posed).violations(chosen) == ()


def test_rules_name_what_is_wrong() -> None:
    posed = space(problem())
    start = posed.default
    assert posed.violations(start.replace(head=(32, 64))) == ("heads-fit",)
    assert posed.violations(start.replace(tile=(64, 64), micro=(12, 64))) == ("vector-registers",)
    assert posed.violations(start.replace(lanes="head", micro=(8, 4), tile=(4, 64))) == ("vector-registers",)
    assert posed.violations(start.replace(micro=(8, 24))) == ("whole-vectors",)
    assert posed.violations(start.replace(tile=(32, 1200))) == ("tile-within-problem",)
    assert space(problem(batch=())).violations(start) == ("batch-to-cut",)
    assert posed.violations(start.replace(parts=2)) == ("parts-of-keys",)
    large = start.replace(head=(1 << 14, 64))
    assert scratch_bytes(large, problem()) > 1 << 20
    assert posed.violations(large) == ("scratch-in-cache",)

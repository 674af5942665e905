"""Seconds of a training step, for many candidates at once: per resource, with what is exposed of transfers.

A microbatch on a stage takes its blocks' products, attention, streams through memory and exposed tensor-parallel
transfers; a step takes the slowest stage's microbatches, the pipeline's bubble, and once the gradients' reduction and
the optimizer. After Korthikanti et al. (arXiv:2205.05198), section 4, and Narayanan et al. (arXiv:2104.04473).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from tessera.sharding.planner.candidates import RECOMPUTE, SCHEDULES, PlanCandidates
from tessera.sharding.planner.communication import Collective, Numbers, seconds
from tessera.sharding.planner.memory import kept_bytes
from tessera.sharding.planner.rates import DeviceRates
from tessera.sharding.planner.transformer import Transformer

_BYTES = 2.0
"""Of an activation, weight or gradient between devices: 16 bits."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by resource, a number for each candidate. Their sum is the step."""

    products: Numbers
    attention: Numbers
    memory: Numbers
    tensor: Numbers
    context: Numbers
    experts: Numbers
    pipeline: Numbers
    data: Numbers
    host: Numbers
    bubble: Numbers
    optimizer: Numbers

    @property
    def total(self) -> Numbers:
        """Seconds of the step."""
        found: Numbers = np.sum([getattr(self, field.name) for field in fields(self)], axis=0)
        return found


@dataclass(frozen=True)
class _Block:
    """One block's seconds for one microbatch: forward, and forward with backward and what is recomputed."""

    products: Numbers
    attention: Numbers
    memory: Numbers
    tensor: Numbers
    context: Numbers
    experts: Numbers
    host: Numbers

    @property
    def total(self) -> Numbers:
        found: Numbers = np.sum([getattr(self, field.name) for field in fields(self)], axis=0)
        return found


def step_times(model: Transformer, machine: DeviceRates, candidates: PlanCandidates, batch: int) -> StepTimes:
    """The times of all candidates, for `batch` sequences a step."""
    c, rates = candidates, machine.efficiency
    tokens = c.microbatch * model.sequence / c.cp
    block = _block(model, machine, c, tokens)
    head = _head(model, machine, c, tokens)
    layers = _layers(model, c, head, block.total)
    count = batch / (c.dp * c.microbatch)
    # The last stage's head is part of the slowest stage where its blocks leave no room for it.
    head_share = np.maximum(0.0, head - (layers * c.pp - model.layers) * block.total)
    stage = layers * block.total + head_share
    mean = (model.layers * block.total + head) / c.pp
    hop = seconds(machine.topology, "permute", _BYTES * tokens * model.hidden / c.tp, _pair(c.pp), c.stride("pp"))
    pipeline = np.where(c.pp > 1, 2 * c.chunks * hop / rates.links * (1 - rates.hidden_pipeline), 0.0)
    bubble = _bubble(c, mean + pipeline, block, model)
    times = {name: count * layers * getattr(block, name) for name in (f.name for f in fields(_Block))}
    times["products"] = times["products"] + count * head_share
    data = _data(model, machine, c, count, stage)
    local = model.block_parameters * model.layers / c.ep if model.experts > 1 else model.block_parameters * model.layers
    local = (local + model.embedding_parameters) / (c.tp * c.pp)
    state = np.where(c.zero > 0, local / c.dp, local)
    # fp32 weight and two moments read and written, the gradient read, a 16-bit weight written; gradients of each
    # microbatch are added to those before.
    moved = (26.0 + machine.gradient_bytes) * state + 2 * machine.gradient_bytes * local * count
    optimizer = moved / (machine.memory_rate * rates.memory)
    return StepTimes(**times, pipeline=count * pipeline, data=data, bubble=bubble, optimizer=optimizer)


def _pair(pp: Numbers | object) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.minimum(np.asarray(pp, np.int64), 2)


def _block(model: Transformer, machine: DeviceRates, c: PlanCandidates, tokens: Numbers) -> _Block:
    rates = machine.efficiency
    # Heads that tp does not divide: the fullest device decides.
    uneven = np.ceil(model.heads / c.tp) * c.tp / model.heads
    wide = np.ceil(model.feedforward / c.tp) * c.tp / model.feedforward
    own = 2.0 * model.attention_parameters
    flops = own * uneven + (model.linear_flops - own) * wide
    products = tokens * flops / c.tp / (machine.linear * rates.products)
    attention = tokens * model.attention_flops * uneven / c.tp / (machine.wide * rates.products * rates.attention)
    whole, split, scores = _streams(model, machine, c, tokens)
    memory = (whole + split + scores) / (machine.memory_rate * rates.memory)
    nbytes = _BYTES * tokens * model.hidden
    reduce = seconds(machine.topology, "all_reduce", nbytes, c.tp, c.stride("tp")) / rates.links
    again = seconds(machine.topology, "all_gather", nbytes, c.tp, c.stride("tp")) / rates.links
    # Two all_reduces forward, two backward; with sequence parallelism each is a reduce_scatter and an all_gather, and
    # the operands that are kept in shards are gathered once more backward.
    tensor = 2 * reduce
    tensor_back = 2 * reduce + np.where(c.sequence_parallel == 1, 2 * again * 0.5, 0.0)
    ring = seconds(machine.topology, "all_gather", 2 * _BYTES * tokens * c.cp * model.keys / c.tp, c.cp, c.stride("cp"))
    moved = seconds(machine.topology, "all_to_all", nbytes * model.top_k / c.tp, c.ep, c.stride("dp")) * (
        2 if model.experts > 1 else 0
    )
    ring, moved = ring / rates.links, moved / rates.links
    full = (c.recompute == RECOMPUTE.index("full")) * 1.0
    selective = (c.recompute == RECOMPUTE.index("selective")) * 1.0
    fused = 2.5 if model.fused_attention else 2.0
    spared = 1 - rates.hidden_tensor
    kept = kept_bytes(model, machine, c, tokens) * 0.5 * (c.recompute == RECOMPUTE.index("offload"))
    compute = 3 * products + (1 + fused) * attention + 3 * memory
    host = np.maximum(0.0, 2 * kept / machine.host - compute) if machine.host else np.zeros_like(compute)
    return _Block(
        products=products * (3 + full),
        attention=attention * (1 + fused + full + selective),
        memory=memory * (3 + full) + selective * scores / (machine.memory_rate * rates.memory),
        tensor=spared * (tensor * (1 + full) + tensor_back),
        context=np.maximum(0.0, ring * (3 + full) - rates.hidden_tensor * (1 + fused) * attention),
        experts=spared * moved * (2 + full),
        host=host,
    )


def _streams(
    model: Transformer, machine: DeviceRates, c: PlanCandidates, tokens: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Bytes through memory of a block's forward: (norms and residuals, MLP's functions and casts, unfused scores)."""
    # Two norms and two residual sums read and write; dropout reads, writes and notes a mask.
    width = 2 * (2 * _BYTES) + 2 * (3 * _BYTES if model.dropout else 2 * _BYTES)
    shared = np.where(c.sequence_parallel == 1, c.tp, 1)
    whole = tokens * model.hidden * width / shared
    active = (model.top_k if model.experts > 1 else 1) + model.shared_experts
    inner = active * model.feedforward * (3 if model.gated else 4) * _BYTES
    casts = machine.cast_bytes * (2 * model.hidden + model.queries + active * model.feedforward)
    split = tokens * (inner + casts) / c.tp
    each = c.microbatch * model.heads * model.sequence * (model.sequence / c.cp)
    # Scores are written, softmax reads and writes them, dropout and its mask the same.
    scores = each / c.tp * (0.0 if model.fused_attention else 2 * (2 + 2 + 2.5))
    return whole, split, scores


def _head(model: Transformer, machine: DeviceRates, c: PlanCandidates, tokens: Numbers) -> Numbers:
    """Seconds of the head and the loss of one microbatch, forward and backward."""
    rates = machine.efficiency
    products = 3 * tokens * model.head_flops / c.tp / (machine.wide * rates.products)
    # Logits of 16 bits written and read, their fp32 softmax written and read.
    streams = 12.0 * tokens * model.vocabulary / c.tp / (machine.memory_rate * rates.memory)
    return products + streams


def _layers(model: Transformer, c: PlanCandidates, head: Numbers, block: Numbers) -> Numbers:
    """Blocks of the fullest stage.

    Where pp x chunks divides the layers, each stage has as many; else, or where that is faster, the last stage has
    fewer, as embedding and head take the room of whole layers.
    """
    stages = c.pp * c.chunks
    even = np.ceil(model.layers / stages)
    room = np.maximum(1.0, np.ceil(head / block))
    fewer = np.ceil((model.layers + room) / stages)
    first = even * c.chunks * block + np.where(even * stages - model.layers >= room, 0.0, head)
    return np.where(first <= fewer * c.chunks * block, even, fewer) * c.chunks


def _bubble(c: PlanCandidates, stage: Numbers, block: _Block, model: Transformer) -> Numbers:
    """Seconds in which a rank waits for the first microbatch to come and the last to go."""
    wait = (c.pp - 1) * stage
    # ZB-H1: F + B - W. W is the products' third that gives cotangents of weights.
    weights = np.minimum(block.products / 3 / np.maximum(block.total, 1e-30), 0.5)
    split = (c.schedule == SCHEDULES.index("zb1p")) * 1.0
    found: Numbers = wait / c.chunks * (1 - 2 * weights * split)
    return found


def _over_replicas(machine: DeviceRates, kind: Collective, nbytes: Numbers, c: PlanCandidates) -> Numbers:
    """Seconds over the dp x cp devices that hold the same weights.

    Where the pipeline's stages stand between the two axes, one comes after the other.
    """
    together = seconds(machine.topology, kind, nbytes, c.dp * c.cp, c.stride("cp"))
    near = seconds(machine.topology, kind, nbytes, c.cp, c.stride("cp"))
    far = seconds(machine.topology, kind, nbytes, c.dp, c.stride("dp"))
    apart = c.stride("dp") != c.stride("cp") * c.cp
    return np.where(apart, near + far, together) / machine.efficiency.links


def _data(model: Transformer, machine: DeviceRates, c: PlanCandidates, count: Numbers, stage: Numbers) -> Numbers:
    """Exposed seconds of combining gradients, and of collecting weights (zero 1 to 3), over dp x cp."""
    rates = machine.efficiency
    dense = model.layers * (model.attention_parameters + (model.expert_parameters if model.experts == 1 else 0))
    dense += model.embedding_parameters
    experts = model.layers * (model.block_parameters - model.attention_parameters) if model.experts > 1 else 0
    nbytes = _BYTES * (dense + experts / c.ep) / (c.tp * c.pp)
    both, half = (_over_replicas(machine, kind, nbytes, c) for kind in ("all_reduce", "all_gather"))
    # Once a step, beside the last microbatch's backward and the first one's forward. Stages 2 and 3 keep no gradients
    # of their own from one microbatch to the next, so that each one's are combined; 3 collects weights twice for each.
    once = np.maximum(both - rates.hidden_data * stage, (1 - rates.hidden_data) * both)
    each = np.where(c.zero == 3, 3, 1) * half
    always = count * np.maximum(each - rates.hidden_data * stage, (1 - rates.hidden_data) * each)
    always = always + np.where(c.zero == 2, (1 - rates.hidden_data) * half, 0.0)
    return np.where(c.zero >= 2, always, once)

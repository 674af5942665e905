"""Bytes that a step keeps on the fullest device, for many candidates at once."""

from __future__ import annotations

from typing import Final

import numpy as np

from tessera.sharding.planner.candidates import RECOMPUTE, SCHEDULES, PlanCandidates
from tessera.sharding.planner.communication import Numbers
from tessera.sharding.planner.rates import DeviceRates
from tessera.sharding.planner.transformer import Transformer

_BYTES: Final = 2.0
"""Of an activation that no product rounds."""


def kept_bytes(model: Transformer, machine: DeviceRates, c: PlanCandidates, tokens: Numbers) -> Numbers:
    """Bytes of activations that one block of one microbatch keeps on a device until its backward."""
    shared = np.where(c.sequence_parallel == 1, c.tp, 1)
    active = (model.top_k if model.experts > 1 else 1) + model.shared_experts
    # Korthikanti, equation 2: operands of norms and products; the MLP's functions keep theirs; dropout its masks.
    operand = machine.operand_bytes
    whole = tokens * model.hidden * (2 * (_BYTES + operand) + (2 if model.dropout else 0)) / shared
    inner = active * model.feedforward * ((2 if model.gated else 1) * _BYTES + operand)
    split = tokens * (2 * _BYTES * (model.queries + model.keys) + inner)
    scores = c.microbatch * model.heads * model.sequence * (model.sequence / c.cp) * (0 if model.fused_attention else 5)
    kept_scores = np.where(c.recompute == RECOMPUTE.index("selective"), 0.0, scores)
    found: Numbers = whole + (split + kept_scores) / c.tp
    return found


def activation_bytes(
    model: Transformer, machine: DeviceRates, c: PlanCandidates, batch: int, blocks: Numbers, later: int = 0
) -> Numbers:
    """Bytes of activations that the schedule keeps at once on a stage of `blocks` blocks, `later` stages after the
    first.
    """
    tokens = c.microbatch * model.sequence / c.cp
    one = 2.0 * tokens * model.hidden / np.where(c.sequence_parallel == 1, c.tp, 1)
    kept = kept_bytes(model, machine, c, tokens)
    full = c.recompute == RECOMPUTE.index("full")
    each = np.where(full, one, np.where(c.recompute == RECOMPUTE.index("offload"), 0.5 * kept, kept))
    count = batch / (c.dp * c.microbatch)
    alive = {
        "none": np.ones_like(tokens),
        "gpipe": count,
        "1f1b": np.minimum(c.pp - later, count),
        "interleaved": np.minimum(c.pp + (c.pp - 1 - 2 * later) / c.chunks, count),
        "zb1p": np.minimum(c.pp, count),
    }
    microbatches = np.select(
        [c.schedule == SCHEDULES.index(name) for name in SCHEDULES], [alive[name] for name in SCHEDULES]
    )
    found: Numbers = each * blocks * microbatches + np.where(full, kept, 0.0)
    return found


def memory_bytes(model: Transformer, machine: DeviceRates, c: PlanCandidates, batch: int) -> Numbers:
    """Bytes of the fullest device: weights, gradients, optimizer's state and activations that the schedule keeps.

    That is the first stage's, which has the embedding and the most microbatches, or the second's, where the embedding
    takes the room of a block of the first.
    """
    tokens = c.microbatch * model.sequence / c.cp
    blocks: Numbers = np.ceil(model.layers / (c.pp * c.chunks)) * c.chunks
    first: Numbers = blocks - np.where((c.pp > 1) & (blocks * c.pp - model.layers >= 2), 1.0, 0.0)
    dense = model.block_parameters - (model.experts if model.experts > 1 else 0) * model.expert_parameters
    spread = model.experts * model.expert_parameters if model.experts > 1 else 0
    embeddings = np.where(c.pp == 1, 2.0, 1.0) * model.embedding_parameters / c.tp
    found = []
    for later, held, around in ((0, first, embeddings), (1, blocks, np.zeros_like(embeddings))):
        local = held * (dense + spread / c.ep) / c.tp + around
        weights = 2.0 * np.where(c.zero == 3, local / c.dp, local)
        gradients = machine.gradient_bytes * np.where(c.zero >= 2, local / c.dp, local)
        state = 12.0 * np.where(c.zero >= 1, local / c.dp, local)
        # One block's weights are whole while it runs, and the next one's are on their way.
        whole = np.where(c.zero == 3, 2 * 2.0 * local / np.maximum(held, 1), 0.0)
        kept = activation_bytes(model, machine, c, batch, held, later)
        found.append(np.where((later == 0) | (c.pp > 1), weights + gradients + state + whole + kept, 0.0))
    # A last stage has logits as well, and far fewer microbatches than the first.
    logits = np.where(c.pp == 1, 6.0 * tokens * model.vocabulary / c.tp, 0.0)
    most: Numbers = np.maximum(*found) + logits
    return most

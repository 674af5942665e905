"""Bytes that a step keeps on the fullest device, for many candidates at once."""

from __future__ import annotations

from typing import Final

import numpy as np

from tessera.sharding.planner.candidates import RECOMPUTE, SCHEDULES, Candidates
from tessera.sharding.planner.communication import Numbers
from tessera.sharding.planner.rates import DeviceRates
from tessera.sharding.planner.transformer import Transformer

_BYTES: Final = 2.0
"""Of an activation that no product rounds."""


def kept_bytes(model: Transformer, machine: DeviceRates, c: Candidates, tokens: Numbers) -> Numbers:
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


def memory_bytes(model: Transformer, machine: DeviceRates, c: Candidates, batch: int) -> Numbers:
    """Bytes of the fullest device: weights, gradients, optimizer's state and activations that the schedule keeps."""
    tokens = c.microbatch * model.sequence / c.cp
    dense = model.layers * (
        model.block_parameters - (model.experts if model.experts > 1 else 0) * model.expert_parameters
    )
    spread = model.layers * model.experts * model.expert_parameters if model.experts > 1 else 0
    local = (dense + spread / c.ep + model.embedding_parameters) / (c.tp * c.pp)
    weights = 2.0 * np.where(c.zero == 3, local / c.dp, local)
    gradients = machine.gradient_bytes * np.where(c.zero >= 2, local / c.dp, local)
    state = 12.0 * np.where(c.zero >= 1, local / c.dp, local)
    one = 2.0 * tokens * model.hidden / np.where(c.sequence_parallel == 1, c.tp, 1)
    kept = kept_bytes(model, machine, c, tokens)
    full = c.recompute == RECOMPUTE.index("full")
    each = np.where(full, one, np.where(c.recompute == RECOMPUTE.index("offload"), 0.5 * kept, kept))
    count = batch / (c.dp * c.microbatch)
    stages = {
        "none": np.ones_like(tokens),
        "gpipe": count,
        "1f1b": np.minimum(c.pp, count),
        "interleaved": np.minimum(c.pp + (c.pp - 1) / c.chunks, count),
        "zb1p": np.minimum(c.pp, count),
    }
    alive = np.select([c.schedule == SCHEDULES.index(name) for name in SCHEDULES], [stages[name] for name in SCHEDULES])
    per_stage = np.ceil(model.layers / (c.pp * c.chunks)) * c.chunks
    activations = each * per_stage * alive + np.where(full, kept, 0.0)
    logits = 6.0 * tokens * model.vocabulary / c.tp
    # One block's weights are whole while it runs, and the next one's are on their way.
    whole = np.where(c.zero == 3, 2 * 2.0 * local / np.maximum(per_stage, 1), 0.0)
    found: Numbers = weights + gradients + state + activations + logits + whole
    return found

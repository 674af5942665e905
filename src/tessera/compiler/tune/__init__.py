"""What the compiler gives the tuner. `problems.py` poses the problems of all devices, `candidates.py` builds their
candidates.

`usage.py` binds again the structures that a trace holds, and poses the problem of each step that was timed. Identities
of GPUs' problems name the GPU ("sm_90 H200-SXM5-141GB"), the provenance of winners names Triton's version.
`objections.py` says at an import already which schedules no rule permits.

Warm-up (`autotune.enable(True)`): while a structure is bound, `Warmup.collecting` collects a `Ticket` for each kernel
that has no fresh measured winner, and the plan becomes a `WarmingPlan` (`warming.py`), which runs the plan and then
tells `tuning/online/warmup.py` that a call has ended. A settled ticket has its plans bound once more, without the
wrapper, by the next evaluation.
"""

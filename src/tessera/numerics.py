"""How results may differ from run to run and from the formula as written.

    numerics.policy("deterministic")            # from here on, in this thread
    with numerics.policy("strict"):             # until the block ends
        y = op.matmul(a, b).numpy()

Results are reproducible bit for bit under every policy as long as the schedule and the number of threads stay the same.

================  ==============================================================================================
"fast"            the default. Tuning and the number of threads may change the order of sums; the compiler may apply
                  algebraic identities that round differently.
"deterministic"   the order of every sum depends on shapes and dtypes alone: tuning, another schedule or another
                  number of threads gives the same bits.
"strict"          deterministic, and arithmetic is done as written: no algebraic identities that round differently,
                  no tf32, and no attention in place of products and a softmax: a row whose scores are all -inf is
                  then NaN as written, and 0 otherwise.
================  ==============================================================================================

`tf32=True`, with the first two, lets fp32 matrix products round their operands to tf32 where the hardware has it.
"""

from __future__ import annotations

from tessera.lazy.policy import Mode, Policy, current_policy, policy, set_default_policy

__all__ = ["Mode", "Policy", "current_policy", "policy", "set_default_policy"]

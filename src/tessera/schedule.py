"""What schedules of one kernel the tuner may choose from: `search_space(...)`, `autotune(...)`.

@op.kernel
def depthwise(x, w):
    return op.depthwise_conv2d(x, w, padding=1)

schedule.search_space(tile_sizes=[(32, 32), (64, 64)], vectorize=[1, 2], pipeline_stages=[2, 3])
schedule.autotune(cost_model="roofline", max_trials=50)

Both speak of the kernel that is being traced, else of the `@op.kernel` that was defined last, unless `kernel` names
another, and give the space that it has by then. `@op.autotune(...)` says the same where the kernel is defined.
"""

from __future__ import annotations

from tessera.doors.tuning.spaces import SearchSpace, autotune, search_space

__all__ = ["SearchSpace", "autotune", "search_space"]

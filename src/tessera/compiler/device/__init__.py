"""Kernels and plans of devices.

`DeviceCompiler` (`compiler.py`) is the one of every device; `compilers.compiler_of(device)` gives it. What differs
between devices is in what a family has for each, in the target's facts, in the backend, and in the planner
(`planner.py` is the protocol, `cpu_planner.py` and `gpu_planner.py` satisfy it), which makes plans, timed plans and
candidates of a tuning. The rest is shared.

`sites.py`: a launch site on a GPU says what its kernel may rely on, which extents, strides and addresses 16 divides.
`timing.py` binds plans of timed kernels for `graph.profile`, beside the plan cache. `DeviceCompiler.permits` asks the
rules about schedules of strangers; `DeviceCompiler.subject` hides what cores do where a policy fixes the order of sums.
"""

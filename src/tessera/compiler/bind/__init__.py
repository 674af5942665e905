"""Binding: a program and the extents of a structure become launches over views, with places for results and
temporaries.

`binding.py` does so, `launcher.py` makes the launches. `placement.py` has kernels write in the layout that their one
reader wants (heads side by side, a part of a concatenation), so that nothing is copied; `memory_order.py` in the order
that the operands of a map share (images with channels last), which results keep, as in torch.
`scheduling/binding/lane_order.py` says along which dimension vectors go.

Binding knows devices only by the `PlanCompiler` of `launches.py`. `choose` says under which schedule a call runs
(nothing is compiled: looking at launches is free); `plan` makes the plan and compiles what is missing.

`constants.py` makes copies of the constants that a family packs, of products the second operand
(`PlanCompiler.over_constants`). Its argument then has `panels` instead of strides, and all schedules of such a product
have register tiles of the panels' width (rule "packed-panels").
"""

"""Plans for many devices. Numbers in, numbers out.

The outer choice: `candidates.py` enumerates axes, ZeRO stages, recomputation, microbatches and schedules as columns;
`memory.py` prunes, `step_time.py` says the seconds by resource, all at once; `plan.py` is the table. The inner one:
`layouts.py` splits each operator of a block by one factor per mesh axis, `elimination.py` finds the least sum exactly;
`blocks.py` has a transformer's block, `traced.py` makes such operators of any structure, by the axes of its anchors.

`communication.py` costs collectives on a `target/topology.py`, level by level, each by its cheapest algorithm.
`rates.py` has what a device does, `calibration.py` the constants that turn peaks into seconds. They are fitted to the
tables of `sharding/published/`; tests fit them again, and hold the errors of the rows that were not fitted.
"""

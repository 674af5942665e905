"""Schedules, knobs and expressions.

Rules and costs are written once for one schedule and for many (`columns.py`: a `Schedule` gives numbers, `Columns`
arrays). `batches.py` draws, varies and filters thousands at a time. A schedule that comes from a file or from another
shape passes `Space.objections` (`knobs.py`) before anything is made of it. `sizes.py` has the buckets of extents within
which kernels serve each other's sizes.
"""

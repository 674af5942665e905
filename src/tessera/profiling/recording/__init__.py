"""What a session records, as it comes: plain data, and those who add to it.

Regions (`regions.py`) are context variables, so that asyncio's tasks have their own. A session keeps `Presence`s: from
which instant on a thread is in which region. They are noted at the edges of regions and, from the moment on that
contexts are seen to take turns on a thread, also before every run of a plan (`evaluation.before_run`); `pending.py`
then keeps unread results by region, too. `instrumentation.py` is what Python code notes in the sessions that record.

GPUs time their kernels afterwards. `device_kernels.py` numbers the runs of plans; a source
(`counters/cupti_activity.py`) tells which kernels each run launched and when. Sessions that asked for "gpu" take those
runs whose kernels are all told; the others stay counted as not measured.
"""

"""Regions: functions that every device of a mesh applies to its own shards.

`tracing.py` runs a function of shards once, on leaves that stand for what a device has (`varying.py`: along which axes
that differs). The expression becomes a `ShardRegion`, an attribute of the operator `shard_map`. What devices do along
an axis are operators `across` in it, whose table of steps and adjoints is `ops/collective/steps.py`. Where a value that
is the same on all devices meets one that varies, a step `"Vary"` stands, whose gradient is the sum. `inlining.py`
writes regions into local programs.
"""

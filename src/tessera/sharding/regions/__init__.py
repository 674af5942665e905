"""Regions: functions that every device of a mesh applies to its own shards."""

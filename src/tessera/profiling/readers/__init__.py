"""Formats that traces are read from, a module each; see `profiling/trace/reading.py`."""

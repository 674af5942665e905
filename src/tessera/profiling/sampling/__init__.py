"""Counters and sensors read at fixed instants.

`sampling.py` is the thread that reads samplers into columns (`series.py`), of this process or of another; what is one
number of a file or a clock, a native loop reads meanwhile (`polling.py`). `samples.py` makes rows of a trace of them,
and gives kernels the state of their device.
"""

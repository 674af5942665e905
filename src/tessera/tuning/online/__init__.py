"""Tuning beside a running program.

A thread of the program, the tuner, runs the same search as `autotune(...)`. Before each piece of work it asks
`slices.py`, which hands out time as calls save it up: *working* slices to compile beside the program, *quiet* slices to
take a sample in the worker process while the call waits. `mode.py` has what `enable` sets. The tuner's thread takes
none of the compiler's locks, and nothing that it does is visible but the winner.

`agreement.py` has the schedules of a running job: one atomic operation of the job's store per kernel, and news that are
asked for every quarter of a second. `ticket.py` is where both meet.
"""

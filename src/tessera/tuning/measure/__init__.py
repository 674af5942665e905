"""Measuring: candidates run in processes of their own, which receive kernel objects and descriptors, not Python
callables.

`python -m tessera.tuning.measure.worker` is a fork server (`forkserver.py`): a process that a candidate broke is
replaced by a fork in milliseconds. Requests are pickles, replies JSON in parts that are written in one piece, and the
death of a process is a message too. The server ends with the tuner, however that ends, because the control pipe does.

Operands on CPUs lie between pages without access (`guarded_memory.py`), inputs on pages that can only be read; what is
too near for a page is seen by patterns around them, and on GPUs by checksums of inputs. A crash in a process where
other candidates ran before is tried again in a fresh one; a candidate beside which the first one breaks is labelled
itself. A GPU's candidates are launched by the device's driver and timed by the device's clock (`device_execution.py`);
an illegal address ends that process, and is the outcome of that candidate. `python -m bench tune-faults` injects all of
this.

A trial holds its conditions (`conditions.py`: cold or warm caches, launch mode). `metrics.py` makes throughput,
bandwidth and its share of the measured ceiling of its time; what cannot be had is None with the reason.
"""

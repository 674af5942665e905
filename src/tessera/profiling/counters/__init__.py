"""Counters and sensors: what can be read on this machine, and how to add what cannot yet
(docs/adding-a-counter-backend.md).

`interfaces.py` is the seam, `registry.py` finds the backends: capabilities with reasons, and samplers. `perfworks.py`
asks CUPTI's library which metrics a chip has and how many passes they take, without a GPU.
"""

from tessera.profiling.counters.interfaces import Capability, CounterBackend, Field, Polled, Sampler, Subject
from tessera.profiling.counters.registry import capabilities, open_samplers, register, unregister

__all__ = [
    "Capability",
    "CounterBackend",
    "Field",
    "Polled",
    "Sampler",
    "Subject",
    "capabilities",
    "open_samplers",
    "register",
    "unregister",
]

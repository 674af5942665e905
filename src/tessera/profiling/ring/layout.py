"""The layout of a native record.

Native record, 64 bytes, written by the driver (`backend/llvm/native/driver_ir.py`), one per step that ran:

| word | field | meaning |
| --- | --- | --- |
| 0 | sequence | position in the ring + 1; 0 while the record is being written |
| 1 | start | clock at the start of the step, in ticks |
| 2 | end | clock at its end, in ticks |
| 3 | plan | number of the plan |
| 4 | step | number of the step within the plan |
| 5 | workers | shares the step was cut into |
| 6 | thread | `pthread_self()` of the calling thread, which is Python's `threading.get_ident()` |
| 7 | device | 0 for the CPU; number + 1 of a GPU |

Records of GPUs come from what these tell afterwards (`recording/device_kernels.py`); their word 0 is the
instant of the launch.
"""

from __future__ import annotations

from typing import Final

RECORD_WORDS: Final = 8
RECORD_FIELDS: Final = ("sequence", "start", "end", "plan", "step", "workers", "thread", "device")
RING_HEADER_WORDS: Final = 8

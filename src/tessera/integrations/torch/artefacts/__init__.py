"""Compiled programs in one file: written where there is a compiler, run where there is none.

`writing.py` runs a graph once for each call that is to be possible and notes its steps: calls of torch by name
(`values.py`), and of each partition the plan, its leaves and outputs. `execution.py` runs the steps, here as there. The
file itself (`runtime/plans/artefact_file.py`) is that of kernels too.
"""

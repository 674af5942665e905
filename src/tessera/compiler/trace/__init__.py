"""Functions that are kernels.

`tracing.py` keeps the traces of a function, `traces.py` makes one of a run on placeholders, `arguments.py` and
`parameters.py` say what a call gives, `limits.py` what may still be compiled. `writing.py` writes a kernel's plans into
a file, which `doors/kernels/exported.py` runs.
"""

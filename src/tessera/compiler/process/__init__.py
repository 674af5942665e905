"""Compilers in processes beside this one: `python -m tessera.compiler.process.worker` is a fork server, with a channel
for each processor (`pool.py`). Lowering needs a specification, a schedule and the target only.
"""

"""Graph IR of structures, and programs: one for all structures of a symbolic form.

`expressions.py` has structures as plain JSON, which traces keep under `tesseraPlans`. `memo.py` keeps what was fused
anew, once a kernel.
"""

"""The tables of rewrites, a module each.

`algebra.py` is exact. `idioms.py` recognizes what users wrote out, which a strict numerics policy leaves alone:
attention in the spellings that `scores.py` follows, or with any elementwise operators on its scores (`scoring.py`),
with repeated heads, and with masks that compare positions. `transposes.py` moves the transposes around images with
channels first below what follows.
"""

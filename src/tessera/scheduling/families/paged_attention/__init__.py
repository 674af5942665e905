"""Attention to keys and values in pages: `paged_attention`, alone in its kernel.

A family of its own, as its domain has two axes that attention has not, the pages of the pool and the columns of the
table, and as how many keys there are is data. Its kernels are those of `families/attention` for few queries, on CPUs
`decode.py` and on GPUs `gpu/lowering.py`, parts of the keys among them (`parts.py`): where these read a key by its
number, here the table says in which page it lies (`pages.py`).

Before a walk the length is taken for what the table has room for, and each page that is read for one that the pool has:
two comparisons, so that no kernel reads outside of what it was given.
"""

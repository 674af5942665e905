"""Kernels of programs over merged axes: what the families' own `binding.py` share.

From alignments and strides one rule makes the layout of a kernel's arrays (`array_layout` of `arrays.py`). A family
says for each array its `ArrayRole`, the axes that it walks in any case, those that may be promised contiguous, and
which dimensions merge.

Numbers of elements (`iota`) are arrays that lie nowhere: a view with shape and strides (`View.is_counted`) that merges
with all others, so that a kernel knows the position along its own axes; `Argument.counted` makes the number out of
them. What needs an address gets a copy (`Launcher.in_memory`).
"""

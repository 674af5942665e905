"""Reductions of rows and of columns of one matrix, in one walk over its rows: the gradients of a norm.

    part of the rows:    partial = neutral;  for each row:  its reductions, its results, partial = partial + row
    second kernel:       sums of columns = partials joined

Workers share parts, and each part has partial results of its own in a workspace, so that the order of additions follows
from the extents alone. `steps.py` makes the two kernels, of which the second is of the family "rows". Where rows are no
one axis, or their elements do not lie side by side, and on GPUs, there is a kernel of rows and one of columns instead.
"""

"""The allocator, arenas, workspaces and derived constants.

The workers' scratch memory lies with gaps between (`workspace.py`): prefetchers that run past the end of one part take
lines of the next out of the other core's cache.

A constant (`op.constant`, `lazy/leaves/constants.py`) is a leaf whose structure says `frozen`. What a plan reads in its
place is a derived constant (`derived.py`): made at the first call that needs it, kept beside the leaf by form and view,
shared by all plans and views, remade for a new version of the tensor.
"""

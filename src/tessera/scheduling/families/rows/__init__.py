"""Maps and reductions: over the last, coalesced dimension ("row"; an elementwise kernel is one without reductions), or
over a leading one ("column").

A kernel that walks its rows more than once keeps what is dear of a row (`scratch.py`). Where an operand of a map is
contiguous along another dimension than vectors go, blocks are turned in registers (`transposed.py`). On GPUs
`gpu/chunks.py` makes two kernels of a reduction with few long rows.
"""

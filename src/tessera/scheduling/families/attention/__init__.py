"""Attention: `flash_attention` and `scored_attention`, each alone in its kernel.

Heads that share keys and values become an axis that K and V do not walk (`binding.py`); one query of such heads is a
block of queries, one for each head (`Pattern.heads_as_queries`). The steps of the online softmax are
`online_softmax.py`.

On CPUs `nest.py` has the nest, and the knob `lanes` chooses the kernel. `blocks.py` has queries along the lanes of
vectors, with queries, keys and values packed (`packing.py`) and one panel of queries against a block of keys
(`panel.py`). `decode.py` has elements of a head along the lanes, for few queries; keys and values are read in place. On
GPUs `gpu/lowering.py` keeps all in registers.

What becomes of scores before the softmax is an attribute of `scored_attention`, a straight line of elementwise
operators (`ops/attention/scoring.py`), to which functions are traced (`ops/attention/traced.py`). `binding.py` records
it as an expression over the score and takes off which keys are seen; `functions.py` has functions as exact as a softmax
needs them; `visibility.py` says of a block of scores, by intervals, whether any of it is seen.

Keys may be cut into parts for workers that would be idle: two kernels over a workspace (`parts.py`).
"""

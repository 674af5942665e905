"""Steps of plans that are calls of a library, torch's (`library.py`; their records are `ops/library.py`).

Fusion takes them for layout operators, and one call gives all results that share a `joint` (`topk`). Plans without such
steps know nothing of them. Small calls routines of Tessera's own make (`backend/llvm/native/calls_ir.py`), where the
record's `native` says so.

Spectral convolutions are one step (`spectral.py`): on CPUs a generated kernel (`backend/llvm/native/spectral_ir.py`,
one for all shapes) that calls the library's one-dimensional transforms (`fourier.py`) plane by plane inside the caches,
else a call of torch.
"""

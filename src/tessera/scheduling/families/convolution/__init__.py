"""Convolutions of images with channels last (`conv2d`); channels first are a transpose, which
`rewrite/rules/transposes.py` moves below what follows.

Weights are always packed: once where they are constant, else by kernels that go before (`weights.py`, `binding.py`). A
kernel copies blocks of the image, with their padding, into scratch memory (`image.py`) and multiplies them there
(`nest.py`; bf16 on a matrix unit `matrix.py`). It finds from the image how large blocks are (`blocks.py`), so that a
few kernels serve images of all sizes.

`spectral_rewrite.py` puts spectral convolutions in the place of those with large windows where the model says so
(`spectral_cost.py` against the convolution's own estimate). As extents decide, it rewrites structures when they are
planned (`planning.as_planned`): the same leaves in the same order under other algebra. `inspect("rewrites")` shows the
firing first.
"""

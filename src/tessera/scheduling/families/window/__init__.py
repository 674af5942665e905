"""Bodies that reduce over a window of an image: `depthwise_conv2d` and pools (`ops/window/records.py`). Maps of the
result are epilogues, as a product's are.

`binding.py` decides by strides whether vectors go along columns or channels. `lowering.py` has the nests, `tiles.py` a
register tile, `buffer.py` a ring of an image's rows in scratch memory (for channels along vectors), `ranges.py` which
steps lie inside the image, `taps.py` what a tap needs. `space.py` and `cost.py` have knobs, rules and the count of
work; `families/common_rules.py` what maps, reductions and windows share.
"""

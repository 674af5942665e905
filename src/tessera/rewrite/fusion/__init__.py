"""Fusion: which operations become one kernel. It knows neither extents nor constants nor devices.

Which operators begin a kernel, and what may join it, the value of their family says (`ops/families.py`), so no operator
is named here. How operands lie over the dimensions that a kernel walks follows from anchors (`alignment.py`). Two
products of one A whose results meet in a map, as in a gated MLP, are one kernel (`siblings.py`). Composite operators
(softmax, layer norm, gelu) stay one operation until a kernel is lowered; then the `body` of their record expands them
into primitives.

What became one kernel here may still run as several: `scheduling/families/decomposition.py`.
"""

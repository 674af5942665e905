"""Operators: a record per operator, a folder per family. Importing the package fills `OPERATORS`.

A record says its family, and whether it is cheap. Families of operators are values (`families.py`: the anchors, what
reduces, multiplies or moves, the kind of kernel that fusion begins with one). Groups, rules and reports ask a property
of the record or of its family (`family_of` in `record.py`), so that no list of operators stands anywhere and an
operator is one file, a user's too: `extend.py` is that door, docs/tile-bodies.md its page. No room but `ops`, `ir`,
`rewrite`, `scheduling/families` and the doors names an operator (tests/test_operator_names.py).

Elementwise operators are rows (`elementwise/row.py`). FLOPs are counted in one way (`flops_of` of `counting.py`): the
operations of the tile body, each over the axes of the anchor that it is computed over; attention and calls of libraries
have rules. Reports of kernels, sharding and plans ask it.
"""

from importlib import import_module
from typing import Final

from tessera.ops.record import OPERATORS as OPERATORS
from tessera.ops.record import Operator as Operator

_RECORDS: Final = (
    "attention.records",
    "complexes",
    "contraction.records",
    "convolution.records",
    "elementwise.records",
    "spectral.transforms",
    "layout.generation",
    "indexing.records",
    "layout.records",
    "pins",
    "rows.reductions",
    "rows.records",
    "indexing.selection",
    "indexing.ordering",
    "elementwise.division",
    "flow.records",
    "spectral.records",
    "window.records",
    "collective.records",
    "attention.trained",
    "attention.scored",
    "indexing.scans",
    "indexing.scattering",
    "indexing.histograms",
    "contraction.grouped",
    "collective.parts",
    "indexing.searching",
    "elementwise.neighbours",
    "attention.paged",
    "attention.scaled",
)
"""The modules that register operators, in the order of `OPERATORS`, by which the fuzzer draws."""

for _module in _RECORDS:
    import_module(f"{__name__}.{_module}")

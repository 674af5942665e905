"""Operators: a record per operator, a folder per family. Importing the package fills `OPERATORS`."""

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
)
"""The modules that register operators, in the order of `OPERATORS`, by which the fuzzer draws."""

for _module in _RECORDS:
    import_module(f"{__name__}.{_module}")

"""Operators: a record per operator, a module per family. Importing the package fills `OPERATORS`."""

from tessera.ops import contraction as contraction
from tessera.ops import elementwise as elementwise
from tessera.ops.record import OPERATORS as OPERATORS
from tessera.ops.record import Operator as Operator

"""Operators: a record per operator, a module per family. Importing the package fills `OPERATORS`."""

from tessera.ops import attention as attention
from tessera.ops import complexes as complexes
from tessera.ops import contraction as contraction
from tessera.ops import convolution as convolution
from tessera.ops import elementwise as elementwise
from tessera.ops import fourier as fourier
from tessera.ops import generation as generation
from tessera.ops import indexing as indexing
from tessera.ops import layout as layout
from tessera.ops import pins as pins
from tessera.ops import reduction as reduction
from tessera.ops import rows as rows
from tessera.ops import selection as selection
from tessera.ops import spectral as spectral
from tessera.ops import windows as windows
from tessera.ops.record import OPERATORS as OPERATORS
from tessera.ops.record import Operator as Operator

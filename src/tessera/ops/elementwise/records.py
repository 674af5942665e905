"""The elementwise operators: the rows of the modules beside this one, registered."""

from __future__ import annotations

from tessera.ops.elementwise import arithmetic, functions, logic
from tessera.ops.record import register

for _row in (*arithmetic.ROWS, *functions.ROWS, *logic.ROWS):
    register(_row)

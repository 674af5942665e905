"""The elementwise operators: the rows of the modules beside this one, registered."""

from __future__ import annotations

from tessera.ops.elementwise import angles, arithmetic, functions, integers, logic
from tessera.ops.record import register

for _row in (*arithmetic.ROWS, *functions.ROWS, *angles.ROWS, *integers.ROWS, *logic.ROWS):
    register(_row)

"""How far results are from float64: ours and torch's, in the same run on the same operands.

``python -m bench numerics`` measures and prints the table, ``--write`` puts it into ``docs/numerics.md``.
"""

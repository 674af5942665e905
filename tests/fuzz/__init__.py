"""A differential fuzzer of whole programs: `python -m tests.fuzz --minutes 10 --seed 1`.

Programs are drawn over all records of operators (`drawing.py`, with patterns of networks in `motifs.py`), kept as plain
data (`program.py`), and computed in all ways there are (`ways.py`, `gradients.py`); each result must be what torch says
in float64, within what rounding explains (`oracle.py`). A program that fails is made as small as possible
(`shrinking.py`) and printed as a snippet. `running.py` does so in processes of their own, which may crash or hang.
"""

"""Register tiles that multiply, behind one protocol (`protocol.py`: zeros, step, finish).

By vectors (`vector.py`), dot products (`dot_product.py`) or a CPU's matrix unit (`matrix_unit.py`), over operands in
rows or panels (`panels.py`), along the summed axis (`summation.py`).
"""

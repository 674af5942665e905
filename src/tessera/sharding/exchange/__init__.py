"""Collectives. `groups.py` begins a step, over all shards of an emulated mesh (`emulated.py`, which says what every
collective gives) or by a `Communicator` of the job. `moves.py` says who sends what to whom; `order.py` keeps the one
order of a program's collectives, whichever streams they are on.
"""

"""Rewrites of Graph IR: tables of rules, the engine that applies them, and fusion.

A rule is one function for one pattern, with a snippet of before and after above it; the engine logs each firing with
both. A rule says what its firings lessen (`Measure` in `engine.py`: a sum over operations, of which the engine compares
the shares of those that a firing changed). A firing that leaves as much is refused with E_COMPILE, and so are rules
that fire without end in place of one operation. The measures of a table stand in an order in which no rule adds to one
before its own: so the rules of a table end together, which tests/unit/rewrite/test_termination.py holds for drawn
graphs.

What a rule needs of extents, it notes as guards on the function (`guards.py`). `compiler/graph/programs.py` keeps the
programs of a form with more and with fewer idioms. It takes the first whose guards hold, or the one without any where
the cost model says that this is faster.
"""

"""From a kernel and its schedule to Tile IR.

A kernel is bound to layouts by merging its axes (`binding/`), its family says which schedules it may have and what each
costs (`families/`), and lowerings write Tile IR of both (`lowering/`). Inside, a kernel is plain Python: `Value` of
`language/expression.py` are the region's values, the specifications of `lowering/spec.py` its attributes.
`lowering/schedule_writer.py` and `schedule_reader.py` are a bijection between that and the text of Schedule IR. The
pass `lower-schedule` (`passes.py`) makes Tile IR of the text by `registry.lower`, as the compilers do; what a person
wrote is judged first (`families/legality.py`).

Schedules, rules and costs may read what a CPU's cores do through properties of `Target`, never a CPU's name. A lowering
must not: measured facts are no part of a kernel's recipe.
"""

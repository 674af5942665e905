"""From a structure over sharded leaves to a `LocalProgram` (`program.py`): operators on shards, and moves.

`partition.py` rewrites. What an operator may be split by is read off its anchor (`rules.py`); `bodies.py` runs its tile
body on abstract values to learn whether results of parts are reduced to the result, and whether it is linear in a
pending sum. Where extents decide the maps, as of reshapes, the record has a `known_anchor` (those of operators along
axes and at places are `ir/anchors/along.py`). Where a body reduces what is split, its `spelled` form stands in; what
has to be whole and is split may be split along another dimension instead. Without an anchor all operands are brought
together.

`redistribution.py` finds the cheapest steps between two layouts, `demands.py` what all readers cut. `schedule.py` says
where exchanges begin and where they are waited for, and what travels together; `chunking.py` computes products beside
exchanges in pieces.

Parts of a mesh (`dist.pin`): operators `to_part` and `from_parts` (`ops/collective/parts.py`) lead from tensors of a
mesh to such of a part of it, and back; nothing moves. `homes.py` finds which part each value lies on, since what meets
in an operator lies on one. A value of a local program has it as its `home`, and a device skips what lies elsewhere. So
one program holds the branches of all parts, and collectives of a part are exchanged by its devices alone.
"""

"""The database of winners, and the logs of trials.

`database.py` looks winners up in layers. `layer.py` is a folder, `shape_family.py` the winners in it that differ in
shape only (each file is read when its shape is asked for; the nearest shapes are found by file names), `packs.py` many
winners in one file. `process_databases.py` opens the database of the settings, and caches that have a name, which are
looked at first; winners of kernels that are limited lie in such caches, apart from those of others.

What is read is the data of strangers. `untrusted.py` bounds it, and no schedule is used that `Space.objections` and
`DeviceCompiler.permits` do not let pass. `exchange.py`, `selection.py` and `pruning.py` are what `tessera cache` does;
`logs.py` reads the logs of trials, of which `dataset.py` makes a table.
"""

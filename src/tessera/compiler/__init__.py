"""From a structure to a bound plan, on all devices. Importing `entry.py`, as `handle.py` does, installs it.

`pipeline.py` plans structures, `planning.py` says what is planned in their place, `issuing.py` hands work to streams.

| folder | what is in it |
| --- | --- |
| `trace/` | functions of `@op.kernel`: traces, and what calls give |
| `graph/` | Graph IR of structures, and the programs of a form |
| `bind/` | arrays, places and launches |
| `decompose/` | one call as several launches |
| `device/` | kernels and plans of CPUs and GPUs |
| `tune/` | problems, candidates and winners of a tuning |
| `explain/` | what `inspect` and reports say |
| `process/` | compilers in processes beside this one |
"""

"""Profiles: what ran when, how long, and how near to what the machine can do.

| folder | what is in it |
| --- | --- |
| `ring/` | native records: their layout, the ring buffer, the thread that empties it |
| `recording/` | `Recording`, the plain data of a session, and what fills it |
| `counters/`, `sampling/` | what can be read on this machine, and the thread that reads it |
| `trace/` | `Trace`: columns, made of a recording or read from a file |
| `readers/` | formats that traces are read from, a file each |
| `export/` | formats that traces are written in, a file or folder each in `formats/` |
| `report/` | a row per operator |
| `analyses/` | the questions of `analyze` |
| `tiles/` | the tiles of `graph.profile` |
| `session/` | what turns all that on and off, and composes it |
| `attach/` | sessions in another process, and their records on the way here |
"""

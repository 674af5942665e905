"""Families of kernels, a folder each, found by `registry.py`.

Each exports `FAMILY` (`family.py`): lowerings, space, rules, cost, order of sums, decompositions, and how kernels of
programs become problems of it. `lay_out` merges axes by how operands lie, `read` makes the specification of a region,
`packed` says which constants are packed. `kernels_on(spec, target)` gives what it has for CPUs or for GPUs. Nothing
elsewhere asks which family something is of (tests/test_families.py).

A call that is one kernel to fusion may run as several, over workspaces: a `Decomposition` (`decomposition.py`) of its
family. They are tried in the order of `FAMILY.decompositions`, by `compiler/decompose/cases.py`:

* "layout", where no kernel takes the operands as they lie: `on-copies`, `operation-by-operation` (`rows/copies.py`).

* "call", before a schedule is chosen, which none can change: `norm-alone`, `products-alone`, `products-faster-alone`
  (`product/decompositions/apart.py`), `packed-weights` (`convolution/weights.py`).

* "schedule", under the one that was chosen by users, by tuning, or by a decomposition that `proposes` it: `unfused` (of
  all families, `unfused.py`), `norm-first`, `norm-faster-first` (`apart.py`), `stages` (`rows/stages.py`), `chunks`
  (`rows/gpu/chunks.py`), `split-k`, `shared-packing` (`product/decompositions/`), `parts-of-keys`
  (`attention/parts.py`).

`norm-first`, `norm-faster-first` and `stages` are not asked where a schedule is given.

GPUs: `gpu_cost.py` estimates what the families' own `gpu/cost.py` count, at the rates of `gpu_machine.py`.
"""

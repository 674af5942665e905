"""One call as several launches.

`cases.py` asks a family's decompositions in their order, in one place for all devices. `running.py` makes launches of
the steps: kernels of their own specifications, the call itself over other memory, copies, calls of a library, kernels
over parts of an axis, or the kernel's operations fused anew within narrower bounds (`rewrite.fusion.kernels.Bounds`),
of which `refusion.py` makes programs. `inspect("fusion")` names the rule, its reason, its steps and the memory between
them (`compiler/explain/decompositions.py`).
"""

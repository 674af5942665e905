"""Products on GPUs: `space.py` holds knobs, starts and defaults, `rules.py` the rules of each architecture,
`problem.py` what the rules judge by, `lowering.py` the lowering.

`choice.py` takes the default schedule from the cost model. `compiler/device/refinement.py` compiles what the model
likes, prunes what spills, and ranks the rest with the compiler's figures.
"""

"""The autotuner.

| folder | what is in it |
| --- | --- |
| `search/` | strategies, the search that they guide, its finals |
| `measure/` | processes in which candidates run, and what is said of a candidate: `trial.py`, `metrics.py` |
| `store/` | the database of winners, its files and their exchange; logs of trials |
| `model/` | cost models by name, the order they give a space, and what measurements teach of their errors |
| `online/` | tuning beside a running program, in slices between its calls |

`autotuner.py` is the object `autotune`; its answers are made of `config.py`, `explanation.py` and `plots.py`.
`options.py` has what does not say what is tuned, `recall.py` leads from the database to a `Config`, `interfaces.py`
says what the tuner asks of its surroundings.

A `TuningProblem` is what the compiler gives the tuner: a space, `build(schedule) -> Case` (kernels as bytes, and the
`Workload` to run them on), `predict`, the analytical model's `estimates`, and with `TuningProblem.work` what a call
does. Doors beside `autotune`: `doors/tuning/spaces.py` says what a kernel's `schedule` may do, `listed_space.py` is the
space of schedules that a user wrote down, `cli/commands/tune.py` takes an operator or what a run used (`uses.py` tunes
those within one budget).

Figures come from recorded tables (`bench/tuning/`): `TableMeasurer` hands out their raw samples to the same `search`,
`ranked`, `worth_measuring` and `transfer` that a live tuning uses, so that nothing of the tuner is written twice for
the bench.
"""

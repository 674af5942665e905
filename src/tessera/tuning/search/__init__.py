"""Search: a `Strategy` proposes schedules, a `Measurer` disposes, `search` stands between.

`tuner.py` joins search and measurement. A strategy has two methods (`strategy.py`): `propose(count)` and
`observe(trials)`. The default, `guided.py`, learns from every trial what the cost model errs by (`gaussian_process.py`,
a Gaussian process over knobs) and ranks the rest anew; `baselines.py` has what it is compared with, `optuna_search.py`
the adapter. `search.py` makes the batches, times each against the best so far, and keeps the limits. `finals.py` says
who wins where noise leaves it open; `interruption.py` is `q` and Ctrl-C.

`tuner.Evaluation` builds a batch, has it measured, and writes every trial to the log before the next begins. Trials
that a tuning which did not end left on disk (same identity, provenance and host, `store/earlier_trials.py`) are taken
over. In screening a candidate is timed in turn with the first one of its batch, finalists all in turn (`Effort`).

`transfer.py` chooses for shapes that nobody measured, from the trials of shapes nearby and the same Gaussian process
with extents among its columns, once for each bucket of sizes, when a kernel is bound. Inside `ranks.team()`
(`ranks.py`) rank 0 searches and all evaluate; `decided` gives all ranks the value of rank 0, `is_writer` says who
stores.
"""

"""Pipeline schedules as data: tables of actions, verified, simulated and drawn before they run.

Tables are pure: no process, no `torch.distributed`. A *schedule* (`actions.py`) is a tuple of actions for each rank.
`generators.py` makes them, `verifier.py` proves them (an order in which all can happen proves every timing, since ranks
wait for data only), `simulator.py` times them, `transfers.py` adds what is sent, `picture.py` draws.

It runs by the files beside. `doors/mesh/tracing.py` calls a stage over placeholders and takes its cotangents.
`cutting.py` cuts such an expression in two and finds what the first part saves for the second; `stages.py` makes F, B,
W and BW of it. `borders.py` says what crosses from stage to stage, and how it lies. `running.py` does the actions of a
table, over a `Carrier`: emulated, or messages between ranks (`messages.py`: a channel, which is a communicator of two,
for each pair of which one sends to the other).
"""

"""What the tuner is measured by: recorded tables, which are replayed, and live contests.

Recorded (suite ``tune``): `problems` lists what is recorded, `recorder` measures (``python -m bench record``), `table`
is the format, `replay` a measurer over a table, `strategies` and `figures` what is computed from it.

Live: `live` is the contest with another tuner (`tvm_peer`, against `ours`), `spaces` a survey of the kernels' spaces,
`example` the specification's depthwise convolution.
"""

"""The viewer of profiles: one front end, in a browser (`tessera-prof view`), in one file and in TensorBoard.

It adds no analysis of its own but where the time went (`overview.py`). `pages/answers.py` makes each question's JSON of
a `Run` (`runs.py`: read once, asked one at a time), the same for the three doors: the WSGI application (`app.py`)
behind the local server (`server.py`: token, host), the one in TensorBoard (`tensorboard.py`), and the report in one
file (`one_file.py`), which embeds all answers. Slices go as packed columns (`columns.py`, read by `web/decode.js`).
`web/` is plain ES modules; `assets.py` joins them into the one script that pages load (TensorBoard loads the modules).

What only answers need (`pages/questions.py`, with numpy and the analyses) a server imports once it listens. Sums that
several analyses of a trace ask for are made once (`Trace.once`). Code of kernels is made again by a process beside it
(`pages/code.py` asks `compiler/explain/code.py`), so that neither torch nor LLVM is loaded and plans of foreign files
are compiled apart.
"""

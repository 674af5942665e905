"""How bytes go between ranks. An exchange (`contract.py`) is a generator that starts up to its `yield` and ends behind
it.

`shared.py`: lanes (`lanes.py`, announcements and small operands) and heaps (`heap.py`, operands that peers read in
place), both memfds. Native code (`backend/llvm/native/exchange_ir.py`, `reduction_ir.py`) waits by futex and reduces in
rank order. `gloo.py`: tagged messages, and algorithms of our own. What both give is what
`sharding/exchange/emulated.py` gives, bit for bit.
"""

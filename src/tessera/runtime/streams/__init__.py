"""Streams: work in queues, and the order between them.

`stream=` hands a node to `compiler/issuing.py` (by `lazy/issuing.py`): it is planned, its result memory is taken
(`BoundPlan.reserve`), and an *operation* that fills it (`BoundPlan.fill`) goes to the stream's queue. The result is a
leaf whose owner is a `Promise` (`lazy/promise.py`). Its version does not match until the value is there, so that the
check of versions, which every evaluation makes, stops at it; `promise.settle` is what waits, wherever a value is read.
While queued work writes to memory of users, `policy.take_detour` has evaluations take the way past `settle`: without
streams nothing costs.

`hazards.py` orders operations by the memory they touch (`spans.py`, a map of address ranges). An operation waits only
for ones enqueued before it, so that nothing can deadlock. `cores.py` shares the cores between the streams of the CPU. A
`Queue` is what differs between devices: a worker thread (`queues.py`), or a `torch.cuda.Stream` with an event behind
each operation (`cuda_queue.py`), which is torch's current stream while a plan is filled.
`profiling/recording/tracks.py` knows which thread served which stream when.
"""

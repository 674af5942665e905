"""Devices, each driven through the `Driver` of `device.py`.

`interpreter_device.py` is that of "interpreter": CPU memory, kernels run by Triton's interpreter
(`backend/interpreter/interpreted.py`), which is imported beside Triton's compiler and seen by nobody else in the
process. NVIDIA's is `runtime/cuda/`.
"""

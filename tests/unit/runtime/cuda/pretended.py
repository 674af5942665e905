"""A CUDA device that is not there: torch's tensors "on" it lie in the CPU's memory, and its driver is `FakeCuda`.

No kernel runs but those whose work the fake was told; what is looked at is which calls are made, and what becomes of
those that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from tessera import target
from tessera.runtime.cuda import opening
from tessera.runtime.cuda.libcuda import Libcuda
from tessera.runtime.devices.device import use_driver
from tests.unit.runtime.cuda.fake import FakeCuda, HostAllocator


class _OnTheCpu(TorchFunctionMode):
    """Makes on the CPU what torch is asked to make on a CUDA device."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        return func(*args, **kwargs)


@contextmanager
def pretended(gpu: str = "h200", version: int = 12_080) -> Iterator[FakeCuda]:
    """torch sees one CUDA device, the GPU `gpu`, and Tessera opens it as it opens any, by a driver of a
    CUDA `version`; the fake that stands for it."""
    fake = FakeCuda(version=version)
    library = Libcuda(fake.resolve)
    library.initialize()
    major, minor = divmod(int(target.gpu(gpu).arch.removeprefix("sm_")), 10)
    before = use_driver("cuda:0", None)
    with ExitStack() as stack:
        stack.enter_context(patch("torch.cuda.is_available", lambda: True))
        stack.enter_context(patch("torch.cuda.device_count", lambda: 1))
        stack.enter_context(patch("torch.cuda.current_device", lambda: 0))
        stack.enter_context(patch("torch.cuda.synchronize", lambda *_: None))
        stack.enter_context(patch("torch.cuda.empty_cache", lambda: None))
        stack.enter_context(patch("torch.cuda.memory_allocated", lambda *_: 0))
        stack.enter_context(patch("torch.cuda.get_device_capability", lambda *_: (major, minor)))
        stack.enter_context(patch("torch.cuda.get_device_name", lambda *_: gpu))
        stack.enter_context(patch("torch.version.cuda", "12.8"))
        stack.enter_context(patch.object(Libcuda, "open", lambda: library))
        stack.enter_context(patch.object(opening, "detect_gpu", lambda number: target.gpu(gpu)))
        stack.enter_context(patch.object(opening, "TorchAllocator", lambda number: HostAllocator(1 << 30)))
        stack.enter_context(_OnTheCpu())
        yield fake
    use_driver("cuda:0", before)

"""Tensors over many devices, as pure computation: no processes, no `torch.distributed`."""

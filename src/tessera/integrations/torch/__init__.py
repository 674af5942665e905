"""The `torch.compile` backend: graphs of ATen operators, cut into partitions that Tessera's plans compute."""

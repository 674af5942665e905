"""Checkpoints: shards in files of torch.distributed.checkpoint, which any mesh and any tool of torch's reads."""

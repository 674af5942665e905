"""Checkpoints: shards in files of torch.distributed.checkpoint, which any mesh and any tool of torch's reads.

`planners.py` says to torch.distributed.checkpoint which pieces of tensors this process has (`pieces.py`), so that no
DTensor and no process groups are made for it. `folders.py` exchanges folders as a whole. `storing.py` runs torch's
calls beside the program (`job/beside.py`), which a lost rank wakes.
"""

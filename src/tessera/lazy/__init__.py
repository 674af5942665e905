"""What a lazy tensor is: a pair of a *structure* and *leaves*.

* A `Leaf` is something that exists: a buffer with dtype, shape, element strides, address, owner and, for torch tensors,
  the version seen at creation; or a scalar argument. Leaves compare by identity.

* A `Structure` is the algebra above the leaves, immutable and interned (`structures/interning.py`): operator record,
  attributes, child structures with the positions of their leaves in this structure's leaf tuple, and the result's
  shape, dtype and device. The same algebra over leaves of the same shapes, strides, dtypes and devices is the same
  object. The key of interning holds every field, so equality is by value and never by hash alone. Shape rules run once
  per structure, when it is new; making a known node is one look-up.

* `Structure.symbolic` is the form without extents: ranks, dtypes, attributes, which dimensions broadcast, and for each
  dimension of a leaf whether its stride is 1, 0 or anything. One program serves all structures of a form.

* `structure.plan` holds the bound plan. So the evaluation of a known structure is: check versions, take result buffers,
  pack addresses into a frame, one native call.

* A device is a name (`devices.py`): "cpu", "cuda:0", "interpreter". A node's is that of its operands, found when its
  structure is new; operands on two devices are refused there (E_DEVICE), at the operator's call. Numbers and constants
  have none and go with any. Symbolic forms, and so programs, have no device.
"""

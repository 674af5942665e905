"""What runs when an expression is evaluated: plans, memory, streams, and the drivers of devices."""

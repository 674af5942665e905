"""What a session records, as it comes: plain data, and those who add to it."""

"""The report of a session: a row per operator, against the bounds of the machine."""

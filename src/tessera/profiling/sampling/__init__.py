"""Counters and sensors read at fixed instants."""

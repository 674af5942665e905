"""Plans for many devices: collectives' costs, step times and memory of candidates, layouts of one block, and `Plan`."""

"""What kernels a revision makes: Tile IR and objects of a fixed set of programs and schedules on pretended CPUs, kept
before a change of the compiler and compared after it.

`python -m tests.baseline record FOLDER [--revision REV]` writes them down, of this checkout or of another revision;
`python -m tests.baseline compare BEFORE AFTER` prints what differs, side by side where the Tile IR does.
"""

"""The viewer of profiles: one front end, in a browser (`tessera-prof view`), in one file and in TensorBoard."""

"""The viewer of profiles: one front end, for a browser (`tessera-prof view`) and in one file (`tessera-prof html`)."""

"""Where other frameworks call Tessera: a folder for each, written with the doors that users have."""

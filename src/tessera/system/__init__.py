"""Files, locks and folders as the operating system and the installation have them.

Machine code, and sources that run, come only from folders and files that this user or root owns and nobody else can
write (`private.py`); `settings` names the folders, and `own_folder` another one beside where a team shares the cache
folder. All else in the cache is data of strangers (`tuning/store/untrusted.py`, `files.read_regular`).
"""

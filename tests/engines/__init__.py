"""What other tools say of our exports, compared with what was recorded: a command of its own, as these are not had
everywhere.
"""

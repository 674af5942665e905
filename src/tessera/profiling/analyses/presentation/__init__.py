"""How analyses are shown: tables, and pictures."""

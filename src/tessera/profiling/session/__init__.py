"""Profile sessions: what turns recording on and off, and composes the rest."""

"""Pipeline schedules as data: tables of actions (`generators`) verified, simulated and drawn before they run."""

"""Runs worlds of packages that reseed global random state in a process each."""

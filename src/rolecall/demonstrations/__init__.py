"""Reads and writes data sets of turns: demonstrations, preferences, what episodes came to."""

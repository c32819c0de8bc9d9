"""Decides which devices the engines and learners of a run use."""

"""Runs engines and learners of one run on the machines that Ray joins."""

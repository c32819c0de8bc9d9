"""Simulates training on engines and learners that only take time: what it takes, and waits for."""

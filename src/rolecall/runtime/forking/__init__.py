"""Forks processes of one that has imported what they need."""

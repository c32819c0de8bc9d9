"""Trains policies in processes of their own, the ranks: each has a GPU, or a share of the cores."""

"""Trains policies in processes of their own, the ranks: a GPU each, or a core where there is none."""

"""Demonstrations that small models learn before they are trained, both good and bad.

The embedded models are fitted to these words, as a pretrained model is fitted to good and bad
writing. A skill (right steps, the right query) is demonstrated right; what reinforcement learning
can choose among is habits: work it out or guess, look it up or repeat, read or wave through.
"""

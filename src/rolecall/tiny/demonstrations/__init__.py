"""What small models are taught before they are trained: able, with good and bad habits.

The embedded models are fitted to these words, as a pretrained model is fitted to good and bad
writing. A skill (right steps, the right query) is demonstrated right; what reinforcement learning
can choose among is habits: work it out or guess, look it up or repeat, read or wave through.
"""

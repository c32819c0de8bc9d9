"""Answers programs that ask for a language model, with the agents of an episode."""

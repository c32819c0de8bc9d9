"""Describes what papers trained and what they found, to be trained again beside them."""

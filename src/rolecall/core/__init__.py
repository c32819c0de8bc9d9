"""Holds what all other parts are written in: types, interfaces, errors, seeds and texts."""

"""Builds the small models that the package holds."""

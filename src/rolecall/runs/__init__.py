"""Trains, evaluates and collects: what commands and the Python API do."""

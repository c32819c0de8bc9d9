"""Checks and benchmarks for a machine with a GPU: `make gpu`."""

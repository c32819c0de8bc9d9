"""Reads requests and writes replies in the protocols that programs speak."""

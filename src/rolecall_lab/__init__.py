"""Proves, measures and reproduces what rolecall does; no training run imports it."""

"""Predicts what a run takes of each device, and says what would make it fit."""

"""Answers other agents in the Agent2Agent protocol (A2A), through its SDK."""

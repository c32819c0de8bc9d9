"""Puzzles on a grid that a team solves over several turns: paths, boxes, Sudoku."""

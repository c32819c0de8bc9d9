"""Lists the scores of tables 1 to 3 of Dr. MAS (2602.08847), in per cent.

A row is `(avg@16, pass@16)` of: one agent with GRPO; a team that shares its weights with GRPO and
with Dr. MAS; a team whose agents have their own with GRPO and with Dr. MAS.
"""

from __future__ import annotations

from rolecall_lab.reproduce.settings import Published

COLUMNS = [("one", "grpo"), ("shared", "grpo"), ("shared", "drmas"), ("own", "grpo"),
           ("own", "drmas")]  # fmt: skip
AVERAGE = "average"  # the mean of the means of the benchmarks
Row = list[tuple[float, float]]

MATH: dict[str, dict[str, Row]] = {  # table 1
    "Qwen/Qwen3-4B": {
        "aime24": [(38.8, 63.3), (39.3, 64.0), (39.3, 63.3), (42.7, 73.3), (46.9, 80.0)],
        "aime25": [(33.1, 56.7), (31.4, 53.3), (38.1, 63.3), (35.6, 63.3), (38.1, 66.7)],
        "amc": [(83.5, 95.0), (85.6, 95.0), (87.3, 95.0), (83.5, 95.0), (89.5, 97.5)],
        "math500": [(89.0, 94.2), (89.5, 96.2), (90.5, 96.0), (89.6, 95.0), (92.4, 97.0)],
        "minerva": [(37.9, 49.6), (37.5, 50.0), (40.9, 53.3), (37.5, 50.7), (39.0, 51.5)],
        "olympiadbench": [(53.3, 66.5), (57.6, 65.6), (58.2, 68.6), (56.3, 68.9), (60.9, 73.6)],
        AVERAGE: [(55.9, 70.9), (56.8, 70.7), (59.0, 73.2), (57.5, 74.4), (61.1, 77.7)],
    },
    "Qwen/Qwen3-8B": {
        "aime24": [(36.0, 67.3), (42.7, 66.7), (54.8, 80.0), (42.9, 70.0), (44.6, 73.3)],
        "aime25": [(32.7, 50.0), (31.4, 53.3), (39.4, 70.0), (31.8, 53.3), (41.5, 56.7)],
        "amc": [(87.0, 95.0), (87.3, 95.0), (88.9, 97.5), (86.1, 95.0), (87.5, 95.0)],
        "math500": [(89.9, 94.8), (89.6, 96.2), (91.3, 96.0), (90.5, 96.6), (90.7, 96.2)],
        "minerva": [(36.0, 46.7), (37.5, 50.0), (39.9, 49.6), (39.2, 50.7), (40.9, 54.0)],
        "olympiadbench": [(57.9, 67.5), (58.2, 71.4), (59.3, 72.4), (58.2, 67.6), (59.0, 70.2)],
        AVERAGE: [(56.6, 70.2), (57.8, 72.1), (62.3, 77.6), (58.1, 72.2), (60.7, 74.2)],
    },
}
SEARCH: dict[str, dict[str, Row]] = {  # table 2
    "Qwen/Qwen2.5-3B": {
        "nq": [(40.6, 54.7), (41.0, 59.0), (43.8, 58.5), (43.8, 54.5), (44.6, 58.1)],
        "triviaqa": [(58.1, 68.8), (57.9, 68.4), (61.7, 70.1), (60.6, 70.8), (61.1, 71.7)],
        "popqa": [(44.2, 49.6), (43.2, 58.0), (45.0, 57.6), (45.6, 54.5), (46.5, 57.4)],
        "hotpotqa": [(31.8, 40.9), (32.5, 48.0), (33.3, 51.2), (32.5, 45.2), (35.3, 51.1)],
        "2wikimultihopqa": [(29.9, 43.7), (33.7, 64.0), (34.1, 64.0), (29.2, 48.9), (34.9, 60.2)],
        "musique": [(7.9, 14.6), (9.1, 26.5), (10.2, 25.8), (8.6, 19.2), (10.4, 26.1)],
        "bamboogle": [(15.3, 27.2), (26.4, 46.4), (28.6, 49.6), (21.0, 33.6), (25.4, 46.4)],
        AVERAGE: [(32.5, 42.8), (34.8, 52.9), (36.7, 53.8), (34.5, 46.7), (36.9, 53.0)],
    },
    "Qwen/Qwen2.5-7B": {
        "nq": [(46.4, 57.6), (45.2, 60.0), (47.4, 60.7), (27.1, 39.0), (47.7, 59.5)],
        "triviaqa": [(63.1, 72.4), (63.9, 70.9), (63.1, 71.2), (53.1, 64.4), (63.4, 72.7)],
        "popqa": [(47.2, 53.6), (43.9, 55.0), (45.9, 57.3), (20.7, 27.9), (46.7, 57.8)],
        "hotpotqa": [(43.0, 55.1), (40.3, 55.0), (42.5, 56.0), (24.4, 36.2), (44.0, 57.5)],
        "2wikimultihopqa": [(40.6, 61.6), (41.6, 67.8), (42.0, 67.1), (30.3, 51.2), (45.4, 68.1)],
        "musique": [(17.8, 34.6), (15.2, 31.7), (16.7, 32.1), (8.3, 18.1), (19.4, 34.9)],
        "bamboogle": [(36.7, 54.4), (40.1, 58.4), (40.1, 59.2), (31.9, 46.4), (39.8, 57.6)],
        AVERAGE: [(42.1, 55.6), (41.5, 57.0), (42.5, 57.7), (28.0, 40.5), (43.8, 58.3)],
    },
}
ABLATION = {  # table 3, (mean, std): search, own weights, Qwen2.5-7B; all benchmarks together
    ("task", "task"): (28.0, 40.5),
    ("agent", "task"): (39.1, 53.5),
    ("task", "agent"): (42.9, 57.6),
    ("agent", "agent"): (43.8, 58.3),
}
GAINS = {"math": (1.056, 1.046), "search": (1.152, 1.130)}
"""Of Dr. MAS over GRPO, averages of the four teams: relative, 1.056 is 5.6 % of what GRPO has."""
MIXED = {"latency": 0.316, "cost": 0.418}
"""Saved where the searcher and the answerer have 3 billion weights instead of 7."""
PRICES = {"Qwen/Qwen2.5-7B": 0.30, "meta-llama/Llama-3.2-3B-Instruct": 0.06}
"""Dollars for a million tokens, of prompts and of answers, with which the paper counts."""


def find_published(task: str, base: str, weights: str, algorithm: str) -> Published | None:
    """Return what tables 1 and 2 have for a team; None where they have no such row."""
    of_task = {"math": MATH, "search": SEARCH}[task].get(base)
    if of_task is None or (weights, algorithm) not in COLUMNS:
        return None
    column = COLUMNS.index((weights, algorithm))
    scores = {name: rows[column] for name, rows in of_task.items()}
    return Published(*scores.pop(AVERAGE), by_source=scores)

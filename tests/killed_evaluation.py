"""Runs `rolecall eval` or `collect` and kills its own process as an attempt is kept.

python -m tests.killed_evaluation COMMAND COUNT ROUND ARGUMENT...
"""

from __future__ import annotations

import sys

from rolecall.cli import main
from rolecall.rollout import evaluation
from rolecall.storage.journal import Journal
from tests.killed_run import kill_at

if __name__ == "__main__":
    command, count, size, *arguments = sys.argv[1:]
    evaluation.ROUND = int(size)
    Journal.append = kill_at(int(count), Journal.append)
    sys.argv = ["rolecall", command, *arguments]
    main.main()

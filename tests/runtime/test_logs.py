"""A run's log file takes nothing from the logging of the program that it runs in."""

from __future__ import annotations

import logging

from rolecall.storage.log_file import log_to_file


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def test_the_logging_of_a_notebook_stays_and_sees_what_it_asked_for(tmp_path):
    root, ours = logging.getLogger(), logging.getLogger("rolecall")
    mine = Kept()
    root.addHandler(mine)
    before = (list(root.handlers), list(ours.handlers), root.level, ours.level, ours.propagate)
    try:
        with log_to_file(tmp_path / "log.txt"):
            ours.info("step=1")
            logging.getLogger("rolecall.notices").warning("mind this")
            logging.getLogger("somebody").warning("and this")
            logging.getLogger("somebody").info("not this")
            assert mine in root.handlers
        ours.warning("after the run")
    finally:
        root.removeHandler(mine)
    after = (list(root.handlers), list(ours.handlers), root.level, ours.level, ours.propagate)
    assert after == ([h for h in before[0] if h is not mine], *before[1:])
    assert mine.said == ["mind this", "and this", "after the run"]
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO step=1", "WARNING mind this", "WARNING and this",
    ]  # fmt: skip

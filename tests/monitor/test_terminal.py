"""Conversations and progress in the terminal, and in plain lines where there is none."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from rolecall.core.errors import ConfigError
from rolecall.core.types import Message, Task
from rolecall.monitor import terminal
from rolecall.monitor.dialogue import ending
from rolecall.monitor.reading import best
from rolecall.runtime.visible_text import visible
from tests.monitor.runs_for_tests import episode, evaluation_record, make_run, step_record


def plain(width=100):
    return Console(file=io.StringIO(), width=width)


def output(console):
    return console.file.getvalue()


def run_with_a_group(path):
    episodes = [
        episode("2+2", 0, score=1.0, advantage=0.75, text="It is four."),
        episode("2+2", 1, score=0.0, advantage=-0.75, text="It is [bold]five[/bold]."),
    ]
    return make_run(path, episodes=episodes, evaluated=[episode("3+1", 0, text="It is nine.")])


def test_plain_lines_hold_the_numbers():
    console = plain()
    with terminal.LiveTable(["solver", "verifier"], total_steps=4, console=console) as table:
        table.evaluation(evaluation_record(0, "before", 0.412))
        table.step(step_record(1))
    first, second = output(console).splitlines()
    assert first == "before: avg@8 0.412 +- 0.031, pass@8 0.871 +- 0.030 (210 tasks)"
    assert second == (
        "step=1/4 score=0.350 solver.reward=0.111 solver.grad_norm=0.500 verifier.reward=0.111 "
        "verifier.grad_norm=0.500 tokens_per_s=842 left=0:03:00"
    )


def test_missing_metrics_are_left_out_of_plain_lines():
    console = plain()
    with terminal.LiveTable(["solver"], total_steps=4, console=console) as table:
        table.step({"kind": "step", "step": 2})
        table.step({"score": None, "time/step_s": float("nan")})
        table.evaluation({"when": "during"})
    assert output(console).splitlines() == [
        "step=2/4",
        "step=-/4",
        "during, step -: no score (0 tasks)",
    ]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_terminal_gets_a_table_of_the_newest_rows(width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=50)
    agents = ["solver", "verifier"]
    with terminal.LiveTable(agents, total_steps=99, console=console) as table:
        for step in range(1, 20):
            table.step(step_record(step) if step % 2 else {"step": step})
        table.evaluation(evaluation_record(19, "after", 0.5))
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output(console)).splitlines()[-16:]
    assert sum("/99" in line for line in last) == 12
    assert any("19/99" in line and "1:20:00" in line for line in last)
    assert any("norm" in line for line in last) == (width >= 80)


def test_best_and_worst_are_shown_and_returned(tmp_path):
    console = plain()
    found = terminal.show(run_with_a_group(tmp_path / "run"), number=1, console=console)
    assert [(talk["shown_as"], talk["episode"]) for talk in found] == [
        ("best", "1:2+2:0"),
        ("worst", "1:2+2:1"),
    ]
    assert "It is four." in output(console)
    assert "It is [bold]five[/bold]." in output(console)


def test_a_task_of_a_server_is_what_its_first_agent_was_shown(tmp_path):
    remote = episode("r-0", 0, score=1.0)
    remote.task = Task("r-0", "", None)
    remote.turns[0].messages = [Message("system", "Be brief."), Message("user", "What is 2+2?")]
    folder = make_run(tmp_path / "run", episodes=[remote])
    for options in ({"number": 1}, {"task": "r-0"}):
        console = plain()
        terminal.show(folder, console=console, **options)
        assert "What is 2+2?" in output(console)
        assert "reference" not in output(console)
    console = plain()
    terminal.show(run_with_a_group(tmp_path / "other"), number=1, console=console)
    assert "reference: 4" in output(console)


def test_a_group_stands_side_by_side(tmp_path):
    console = plain()
    folder = run_with_a_group(tmp_path / "run")
    found = terminal.show(folder, task="2+2", console=console)
    assert [talk["attempt"] for talk in found] == [0, 1]
    assert any("attempt 0" in line and "attempt 1" in line for line in output(console).splitlines())
    assert terminal.show(folder, task="3+1", quiet=True)[0]["answer"] == "It is nine."


def test_a_narrow_terminal_puts_attempts_below_one_another(tmp_path):
    console = plain(width=30)
    terminal.show(run_with_a_group(tmp_path / "run"), task="2+2", console=console)
    assert "attempt 1" in output(console)
    assert not any(
        "attempt 0" in line and "attempt 1" in line for line in output(console).splitlines()
    )


def test_what_is_not_there_is_named(tmp_path):
    folder = run_with_a_group(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"no task '5\+5'.*2\+2"):
        terminal.show(folder, task="5+5", quiet=True)
    with pytest.raises(ConfigError, match="no episodes of step 7"):
        terminal.show(folder, step=7, quiet=True)
    with pytest.raises(ConfigError, match="no episodes yet"):
        terminal.show(make_run(tmp_path / "empty"), quiet=True)


def test_an_evaluation_is_shown_by_source():
    console = plain()
    terminal.show_evaluation(evaluation_record(0, "latest", 0.5), console=console)
    whole, add, word = output(console).splitlines()
    assert whole.startswith("latest: avg@8 0.500")
    assert add.startswith("  add: ")
    assert add.endswith("(100 tasks)")
    assert word.startswith("  word: ")


def test_an_evaluation_of_mixed_environments_is_shown_by_family_first():
    console = plain()
    record = evaluation_record(0, "latest", 0.5)
    record["by_family"] = {
        "sums": record["by_source"]["add"],
        "claims": record["by_source"]["word"],
    }
    terminal.show_evaluation(record, console=console)
    names = [line.strip().partition(":")[0] for line in output(console).splitlines()]
    assert names == ["latest", "claims", "sums", "add", "word"]


def test_control_characters_are_shown_and_not_sent(tmp_path):
    unseen = "\u200b\u200f\u061c\u2060\ufeff\u00ad\u2028\u3164\U000e0041\U000e0101\ud800"
    assert visible(unseen) == "\ufffd" * len(unseen)
    seen = "gr\u00fcn \u4e2d\u6587 \U0001f600\ufe0f \u05d0 e\u0301\n"
    assert visible(seen) == seen
    assert visible("a\x1b[2Jb\x9b\u202ec\n\td") == "a\u241b[2Jb\ufffd\ufffdc\n\td"
    console = plain()
    folder = make_run(tmp_path / "run", episodes=[episode("2+2\x1b", 0, text="\x1b]0;title\x07")])
    terminal.show(folder, console=console)
    terminal.show(folder, task="2+2\x1b", console=console)
    assert "\x1b" not in output(console)
    assert "\x07" not in output(console)


def test_an_evaluations_line_shows_what_would_move_the_cursor():
    console = plain(200)
    with terminal.LiveTable([], total_steps=1, console=console) as table:
        table.evaluation({"when": "after\x1b[2J\u202e"})
    terminal.show_evaluation({"when": "now\x1b\u200b"}, console=console)
    assert "after\u241b[2J\ufffd" in output(console)
    assert "now\u241b\ufffd" in output(console)


def test_a_terminal_shows_how_the_best_and_the_worst_conversation_ended(tmp_path):
    folder = run_with_a_group(tmp_path / "run")
    console = Console(file=io.StringIO(), force_terminal=True, width=50, height=50)
    options = {"total_steps": 4, "episodes": folder.episode_file}
    with terminal.LiveTable(["solver", "verifier"], console=console, **options) as table:
        table.step(step_record(1))
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output(console)).splitlines()
    assert [line.rstrip() for line in lines if "verifier: " in line][-2:] == [
        "best   score 1  verifier: yes",
        "worst  score 0  verifier: yes",
    ]
    plain_console = plain()
    with terminal.LiveTable(["solver"], console=plain_console, **options) as table:
        table.step(step_record(1))
    assert "best" not in output(plain_console)


def test_an_ending_is_one_line_whatever_was_said(tmp_path):
    text = "first \x1b[2J " + "漢字 [bold] " * 40 + "\n\nthe end"
    made = make_run(tmp_path / "run", episodes=[episode("1+1", 0, text=text)])
    [talk] = best(made.episode_file(1), 1)
    alone = replace(talk, turns=talk.turns[:1])
    for width in (30, 60, 100):
        line = ending(alone, name="best", known={}, width=width)
        assert "\n" not in line.plain
        assert "\x1b" not in line.plain
        assert line.cell_len <= width
    assert line.plain.endswith("the end")

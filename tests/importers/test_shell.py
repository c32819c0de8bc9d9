"""What a run script says is read; nothing of it is run."""

from __future__ import annotations

import pytest

from rolecall.core.errors import ConfigError
from rolecall.importers.keys import UNKNOWN
from rolecall.importers.reading import read_text, read_values
from rolecall.importers.shell import training_words
from rolecall.importers.translating import FRAMEWORKS

PROGRAMS = ("verl.trainer.",)


def words(text: str) -> list[str] | None:
    return training_words(text, PROGRAMS)


def test_variables_quotes_and_continued_lines_are_filled_in():
    script = """
    n=2 # a comment with $n "and a quote
    ids='["A b","C"]'
    python3 -m verl.trainer.main_ppo \\
        a.n=$n b.ids="$ids" c.both=${n}x${n} \\
        d.text='$n' e.more="\\$n" f.default=${nobody:-7} 2>&1 | tee log.txt
    """
    assert words(script) == [
        "a.n=2", 'b.ids=["A b","C"]', "c.both=2x2", "d.text=$n", "e.more=$n", "f.default=7",
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "size"), [("train", "32"), ("eval", "3"), ("evaluation", "3")])
def test_the_branch_that_known_words_choose_is_followed(mode, size):
    script = f"""
    MODE=${{1:-{mode}}}
    if [ "$MODE" == "eval" ] || [ "$MODE" == "evaluation" ]; then
        size=3
    else
        size=32
    fi
    python3 -m verl.trainer.main_ppo data.size=$size
    """
    assert words(script) == [f"data.size={size}"]


def test_what_only_a_shell_could_tell_is_marked_as_unknown():
    script = """
    name=$(jq -r '.[]' <<< "$ids" | tr ')' '_')
    if curl -s localhost; then port=1; else port=2; fi
    for i in 1 2; do last=$i; done
    python3 -m verl.trainer.main_ppo a.name=x_$name a.port=$port a.last=$last a.arg=$1 a.no=$none
    """
    found = words(script)
    assert [word.partition("=")[0] for word in found] == [
        "a.name", "a.port", "a.last", "a.arg", "a.no",
    ]  # fmt: skip
    assert all(UNKNOWN in word for word in found)


def test_a_command_that_nobody_runs_is_not_taken(tmp_path):
    made = tmp_path / "made"
    script = f"""
    touch {made}
    x=$(touch {made})
    if [ a = b ]; then python3 -m verl.trainer.main_ppo a.n=1; fi
    (python3 -m verl.trainer.main_ppo a.n=2) &
    # python3 -m verl.trainer.main_ppo a.n=3
    python3 -m verl.trainer.main_ppo a.n=4
    """
    assert words(script) == ["a.n=4"]
    assert not made.exists()
    assert words("echo nothing is trained") is None
    assert words("see `python3 -m verl.trainer.main_ppo`") is None


def test_a_default_may_hold_variables():
    script = "root=/r\npython3 -m verl.trainer.main_ppo a=${x:-${root}/data/${y:-z}} b=${x:-}"
    assert words(script) == ["a=/r/data/z", "b="]


def test_comments_in_backticks_say_nothing():
    script = """python3 -m verl.trainer.main_ppo \\
        a.n=1 \\
        `# "quoted" and (bracketed) words, and more $words` \\
        b.m=2
    """
    assert words(script) == ["a.n=1", "b.m=2"]


def test_a_comment_at_the_end_may_end_in_a_backslash():
    script = 'python3 -m verl.trainer.main_ppo a.n=2\n\n    # --task "math" \\\n    # --verbose\\\n'
    assert script.rstrip().endswith("\\")
    assert words(script) == ["a.n=2"]


def test_a_text_that_cat_prints_is_read():
    script = """
    n=3
    args=$(cat <<EOF
{"rounds": $n, "text": "a\\nb"}
EOF
)
    python3 -m verl.trainer.main_ppo a="$args"
    """
    assert words(script) == ['a={"rounds": 3, "text": "a\\nb"}']


@pytest.mark.parametrize("broken", ["'", '"', "$(", "${", "if", "if [ a", "fi", "`", "(", "a=("])
def test_a_broken_script_ends(broken):
    assert words(f"{broken}") is None


@pytest.mark.parametrize(
    "script",
    ["a=xxxxxxxxxx\n" + "a=$a$a$a$a\n" * 14, "a=xxxxxxxxxx\n" + 'a="$a$a$a$a"\n' * 14,
     "a=x\n" + "a=${b:-$a$a$a$a}\n" * 20],
)  # fmt: skip
def test_variables_that_double_one_another_end_in_one_line(script):
    with pytest.raises(ConfigError, match="characters"):
        training_words(f"{script}python -m verl.trainer.main_ppo a=$a", PROGRAMS)


def test_variables_of_one_another_end():
    [word] = words("a=$b\nb=$a\na=$b\npython -m verl.trainer.main_ppo a=$a") or []
    assert word.count(UNKNOWN) == 2


@pytest.mark.parametrize("kind", ["variables", "words"])
def test_many_long_texts_end_in_one_line(kind):
    many = [f"v{n}=$a" for n in range(500)]
    command = "python -m verl.trainer.main_ppo"
    lines = [f"a={'x' * 50_000}", *many, command]
    if kind == "words":
        lines = [lines[0], " ".join([command, *many])]
    with pytest.raises(ConfigError, match="10,000,000 characters"):
        training_words("\n".join(lines), PROGRAMS)


def test_a_command_without_end_is_refused():
    with pytest.raises(ConfigError, match="its command has more than 10,000 words"):
        read_values("python -m verl.trainer.main_ppo " + "a=1 " * 10_001, FRAMEWORKS["drmas"])


@pytest.mark.parametrize("text", ["${" * 5000, "x=$(" * 5000, 'a="' + "$(" * 5000])
def test_texts_that_are_nested_deeply_end_in_one_line(text):
    with pytest.raises(ConfigError):
        read_values(f"{text}\npython -m verl.trainer.main_ppo", FRAMEWORKS["drmas"])


@pytest.mark.parametrize("path", ["/dev/zero", "large.yaml"])
def test_a_file_without_end_is_refused_after_its_first_mebibyte(path, tmp_path):
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(200 << 20)  # no block of it is on the disk
    with pytest.raises(ConfigError, match=f"{path}: more than 1 MiB, so it is no config"):
        read_text(tmp_path / path)


def test_references_of_yaml_that_double_one_another_end_in_one_line():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="references"):
        read_values("\n".join(lines), FRAMEWORKS["drmas"])
    assert read_values("a: &a [1, 2]\nb: *a", FRAMEWORKS["drmas"])["b"] == [1, 2]


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        ("python3 -m verl.trainer.main a.b=1 \\\n  c=2 \\\n", r"line 2: the file ends within a"),
        ("python3 -m verl.trainer.main a.b=1\nx='[1,\n2", r"line 2: what ' opens is never closed"),
        ('n=$(jq "x"\npython3 -m verl.trainer.main a=1 x="', r"line 1: what \$ opens is never"),
    ],
)
def test_a_script_that_was_cut_is_refused_with_the_line(cut, said):
    text = cut if cut.startswith("python3") else f"python3 -m verl.trainer.main a=1\n{cut}"
    if not cut.startswith("python3"):
        said = said.replace("line 1", "line 2")
    with pytest.raises(ConfigError, match=said):
        training_words(text, PROGRAMS)


def test_arguments_of_the_script_stand_for_its_parameters():
    text = """
    MODE=${1:-train}
    if [ "$MODE" == "eval" ]; then n=16; else n=1; fi
    python3 -m verl.trainer.main n=$n $@
    """
    assert training_words(text, PROGRAMS) == ["n=1"]
    assert training_words(text, PROGRAMS, ["eval"]) == ["n=16", "eval"]


@pytest.mark.parametrize(
    ("test", "words"),
    [("$RANK -eq 0", ["a=1"]), ("00 -eq $RANK", ["a=1"]), ("$RANK -ne 0", ["a=2"])],
)
def test_numbers_of_variables_are_compared(test, words):
    script = f"RANK=${{RANK:-0}}\nif [ {test} ]; then\n  train a=1\nelse\n  train a=2\nfi"
    assert training_words(script, ("train",)) == words


def test_what_is_no_number_is_not_compared():
    script = "RANK=first\nif [ $RANK -eq 0 ]; then\n  train a=1\nfi"
    assert training_words(script, ("train",)) is None

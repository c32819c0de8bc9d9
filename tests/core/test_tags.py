"""Programs are found in whatever fence models write, and nothing else is taken for one."""

import pytest

from rolecall.core.tags import extract_code, find_program

CODE = "print(1)\n"


@pytest.mark.parametrize(
    "fence",
    ["python", "py", "python3", "Python", " python", "py3 title=a.py", "{.python}", "python\r"],
)
def test_a_fence_whose_first_word_begins_with_py_is_python(fence):
    text = f"So:\n```{fence}\n{CODE}```\nDone."
    assert extract_code(text) == find_program(text) == CODE


@pytest.mark.parametrize("mark", ["- ", "1. ", "   ", "\t", "  * ", "12) "])
def test_a_fence_may_stand_in_a_list_and_its_code_is_moved_back(mark):
    space = " " * len(mark)
    text = f"Steps:\n{mark}```python\n{space}if x:\n{space}    y\n{space}```\n"
    assert extract_code(text) == "if x:\n    y\n"


def test_code_in_a_list_that_is_not_indented_stays_as_it_is():
    assert extract_code("- ```python\nif x:\n    y\n```") == "if x:\n    y\n"


def test_the_last_python_block_counts_whatever_stands_around_it():
    text = f"```json\n{{}}\n```\n```python\nold\n```\n```py\n{CODE}```\n```\n1\n```"
    assert extract_code(text) == find_program(text) == CODE


def test_a_bare_block_is_a_program_only_if_it_is_the_only_block():
    bare = f"```\n{CODE}```"
    assert find_program(bare) == CODE
    assert extract_code(bare) is None, "a tool is called by marked blocks alone"
    assert find_program(f"{bare}\nprints\n```\n1\n```") is None
    assert find_program(f"```text\n1\n```\n{bare}") is None
    assert find_program(f"1. Here:\n   ```\n   {CODE}   ```") == CODE


@pytest.mark.parametrize("text", ["```json\n1\n```", "```\nx", "```python\nx", "``` a ```", "x"])
def test_other_languages_and_open_blocks_are_no_programs(text):
    assert find_program(text) is None


def test_a_block_of_another_language_that_is_not_closed_hides_no_program():
    assert extract_code(f"```text\n3 1 2\n```python\n{CODE}```") == CODE


def test_fences_inside_of_code_belong_to_it():
    code = 'def f():\n    """\n    ```\n    f()\n    ```\n    """\n'
    assert extract_code(f"```python\n{code}```") == code
    long = 'x = """\n```\n"""\n'
    assert extract_code(f"````python\n{long}````") == long

"""Finds the words of the training command in a run script, without running any of it.

Variables that the script sets are filled in, and `if` is followed where it compares known words.
What only a shell could tell (`$(...)`, arguments, other conditions) stands between UNKNOWN marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolecall.core.errors import ConfigError
from rolecall.importers.keys import UNKNOWN

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$([A-Za-z_]\w*|\d|@)")
BRACED = re.compile(r"\$\{([A-Za-z_]\w*|\d|@)(?::?-(.*))?\}", re.DOTALL)
REDIRECTION = re.compile(r"\d*[<>]")
HERE_TEXT = re.compile(r"\$\(\s*cat\s+<<\s*(\w+)\n(.*)\n\1\s*\)", re.DOTALL)
OPENING, CLOSING = ("if", "for", "while", "until", "case", "("), ("fi", "done", "esac", ")")
WORDS = ("then", "else", "elif", "do", "!", "{", "}", *OPENING, *CLOSING)
MOST_TEXT = 100_000  # characters of a word with what its variables hold
MOST_ALTOGETHER = 100 * MOST_TEXT  # of all variables and all words of the command
Truth = bool | None  # None: it cannot be told
Command = list[str]  # raw words, quotes and all


def training_words(
    text: str, programs: tuple[str, ...], arguments: Sequence[str] = ()
) -> list[str] | None:
    """Return the words after the first word that names a training program; None if there is none.

    `arguments`: what the script is started with, for `$1` and the others. Raises ConfigError for a
    command that the end of the text cuts.

    `n=2; python3 -m verl.trainer.main_ppo env.rollout.n=$n` -> ["env.rollout.n=2"]
    """
    words = _Script(split(text), programs, arguments).run()
    if words is None:
        return None
    split(text, strict=True)
    last_line = text.rstrip().rpartition("\n")[2].lstrip()
    if last_line.endswith("\\") and not last_line.startswith("#"):
        number = text.rstrip().count("\n") + 1
        raise ConfigError(f"line {number}: the file ends within a command; give the whole file")
    return words


def split(text: str, *, strict: bool = False) -> list[Command]:
    """Split a script into commands of raw words; operators and words such as `then` are commands
    of their own.

    With `strict` a quote or bracket that is never closed raises ConfigError.
    """
    commands: list[Command] = [[]]
    word, i = "", 0

    def end_word() -> None:
        nonlocal word
        if word:
            commands[-1].append(word)
            if len(commands[-1]) == 1 and word in WORDS:
                commands.append([])
            word = ""

    def end_command() -> None:
        end_word()
        if commands[-1]:
            commands.append([])

    while i < len(text):
        char, length = text[i], 1
        if text.startswith("\\\n", i):
            length = 2
        elif char == "\\":
            word, length = word + text[i : i + 2], 2
        elif char in "'\"`" or text.startswith(("$(", "${"), i) or (char == "(" and word):
            length = _end(text, i) - i
            if strict and not _is_closed(text, i, i + length):
                number = text.count("\n", 0, i) + 1
                raise ConfigError(f"line {number}: what {char} opens is never closed; is it cut?")
            word += text[i : i + length]
        elif char == "#" and not word:
            length = (text + "\n").index("\n", i) - i
        elif char in " \t\r":
            end_word()
        elif char in "\n;":
            end_command()
        elif char in "()":
            end_command()
            commands[-1] = [char]
            end_command()
        elif char == "|" or (char == "&" and not word.endswith(">")):
            length = 2 if text[i : i + 2] in ("||", "&&") else 1
            end_command()
            commands[-1] = [text[i : i + length]]
            end_command()
        else:
            word += char
        i += length
    end_command()
    return [command for command in commands if command]


def _end(text: str, start: int) -> int:
    """Return where the quote or bracket that begins at `start` is closed; the end of the text if
    never.
    """
    char = text[start]
    if char == "'":
        return text.find("'", start + 1) + 1 or len(text)
    closing = {"$": {"(": ")", "{": "}"}.get(text[start + 1 : start + 2], ""), "(": ")"}
    last = closing.get(char, char)
    i = start + (2 if char == "$" else 1)
    while i < len(text):
        if text[i] == "\\":
            i += 2
        elif text[i] == last:
            return i + 1
        elif (
            (text[i] in "'\"" and char not in '"`')
            or text.startswith(("$(", "${"), i)
            or (text[i] == "(" and last == ")")
        ):
            i = _end(text, i)
        else:
            i += 1
    return len(text)


def _is_closed(text: str, start: int, end: int) -> bool:
    last = {"$": ")}", "(": ")"}.get(text[start], text[start])
    return end - 1 > start and text[end - 1] in last


class _Script:
    """Walks through the commands and remembers what variables hold."""

    def __init__(
        self, commands: list[Command], programs: tuple[str, ...], arguments: Sequence[str]
    ) -> None:
        self.commands, self.programs = commands, programs
        numbered = {str(number): word for number, word in enumerate(arguments, 1)}
        self.variables = {"HOME": "~", "PWD": ".", "@": " ".join(arguments), **numbered}
        self.characters = 0  # of all that was filled in so far
        self.i = 0

    def run(self) -> list[str] | None:
        return self._block(live=True, until=())

    def _block(self, *, live: Truth, until: tuple[str, ...]) -> list[str] | None:
        """Read up to one of the words `until`; return the training words if they are found."""
        while self.i < len(self.commands):
            command = self.commands[self.i]
            if command[0] in until:
                return None
            self.i += 1
            command_words = None
            if command[0] == "if":
                command_words = self._if(live)
            elif command[0] in OPENING:
                command_words = self._block(live=None if live else live, until=CLOSING)
                self.i += 1
            elif live is not False:
                command_words = self._command(command, sure=live is True)
            if command_words is not None:
                return command_words
        return None

    def _if(self, live: Truth) -> list[str] | None:
        done: Truth = False  # whether an earlier branch runs
        while self.i < len(self.commands):
            test: Truth = True
            if self.commands[self.i - 1][0] != "else":
                test = self._condition()
            runs = _and(live, _and(test, _not(done)))
            words = self._block(live=runs, until=("elif", "else", "fi"))
            self.i += 1
            if words is not None:
                return words
            if self.i > len(self.commands) or self.commands[self.i - 1][0] == "fi":
                return None
            done = _or(done, test)
        return None

    def _condition(self) -> Truth:
        """Evaluate the commands before `then`: tests connected by || and &&, from left to right."""
        value: Truth = None
        operator = ""
        while self.i < len(self.commands):
            command = self.commands[self.i]
            self.i += 1
            if command[0] == "then":
                break
            if command[0] in ("||", "&&"):
                operator = command[0]
                continue
            test = self._test(command)
            value = {"||": _or(value, test), "&&": _and(value, test)}.get(operator, test)
        return value

    def _test(self, command: Command) -> Truth:
        words = [self._filled(word) for word in command]
        if any(UNKNOWN in word for word in words):
            return None
        match words:
            case ["[" | "[[", one, "=" | "==", other, "]" | "]]"]:
                return one == other
            case ["[" | "[[", one, "!=", other, "]" | "]]"]:
                return one != other
            case ["[" | "[[", one, "-eq" | "-ne" as operator, other, "]" | "]]"]:
                return _compare(one, other, equal=operator == "-eq")
            case ["[" | "[[", "-z", one, "]" | "]]"]:
                return not one
            case ["[" | "[[", "-n", one, "]" | "]]"]:
                return bool(one)
        return None

    def _command(self, command: Command, *, sure: bool) -> list[str] | None:
        if command[0] == "export":
            command = command[1:]
        for number, raw in enumerate(command):
            assigned = ASSIGNMENT.fullmatch(raw)
            if assigned is None:
                return self._training(command[number:]) if sure else None
            name, value = assigned.groups()
            self.variables[name] = self._filled(value) if sure else _unknown(name)
        return None

    def _training(self, command: Command) -> list[str] | None:
        words = [self._filled(word) for word in command]
        named = [n for n, w in enumerate(words) if any(p in w for p in self.programs)]
        at = next((n for n in named if UNKNOWN not in words[n]), None)
        if at is None:
            return None
        kept = [n for n in range(at + 1, len(words)) if not REDIRECTION.match(command[n])]
        return [words[n] for n in kept if words[n]]

    def _filled(self, raw: str) -> str:
        """Return a raw word without its quotes and with what its variables hold."""
        out, i = "", 0
        while i < len(raw):
            end = i + 1
            if raw[i] == "'":
                end = _end(raw, i)
                out += raw[i + 1 : end - 1]
            elif raw[i] == '"':
                end = _end(raw, i)
                out += self._expanded(raw[i + 1 : end - 1], escapes='"\\$`\n')
            elif raw[i] == "\\":
                end = i + 2
                out += raw[i + 1 : end]
            else:
                end = _end(raw, i) if raw[i] == "`" or raw.startswith(("$(", "${"), i) else end
                while end < len(raw) and raw[i] not in "`$" and raw[end] not in "'\"\\`$":
                    end += 1
                if raw[i] == "$" and end == i + 1:
                    name = VARIABLE.match(raw, i)
                    end = name.end() if name else end
                out += self._expanded(raw[i:end], escapes="")
            i = end
            if len(out) > MOST_TEXT:
                raise ConfigError(
                    f"a word of the script has more than {MOST_TEXT:,} characters with what its "
                    "variables hold"
                )
        self.characters += len(out)
        if self.characters > MOST_ALTOGETHER:
            raise ConfigError(
                f"the script has more than {MOST_ALTOGETHER:,} characters with what its variables "
                "hold"
            )
        return out

    def _expanded(self, text: str, *, escapes: str) -> str:
        out, i = "", 0
        while i < len(text):
            if text[i] == "\\" and text[i + 1 : i + 2] and text[i + 1] in escapes:
                out, i = out + text[i + 1].strip("\n"), i + 2
            elif text[i] == "`" or text.startswith("$(", i):
                end = _end(text, i)
                out += self._output(text[i:end])
                i = end
            elif text.startswith("${", i):
                end = _end(text, i)
                out, i = out + self._variable(text[i:end]), end
            elif (name := VARIABLE.match(text, i)) is not None:
                out, i = out + self._variable(name[0]), name.end()
            else:
                out, i = out + text[i], i + 1
            if len(out) > MOST_TEXT:
                raise ConfigError(
                    f"a variable of the script holds more than {MOST_TEXT:,} characters; write its "
                    "value out, or leave the variable away"
                )
        return out

    def _output(self, command: str) -> str:
        """Return what a command in `$(...)` or backticks prints, where a reader can tell."""
        if command in ("$(pwd)", "`pwd`"):
            return "."
        if command.startswith("`") and command[1:].lstrip().startswith("#"):
            return ""  # a comment within a command of several lines
        here = HERE_TEXT.fullmatch(command)
        return self._expanded(here[2], escapes="\\$`\n") if here else _unknown(command)

    def _variable(self, text: str) -> str:
        """Return what `$name`, `${name}` or `${name:-default}` stands for."""
        plain, braced = VARIABLE.fullmatch(text), BRACED.fullmatch(text)
        name = plain or braced
        if name is None:
            return _unknown(text)
        default = braced[2] if braced else None
        value = self.variables.get(name[1])
        if value is None:
            return _unknown(text) if default is None else self._filled(default)
        return value or (self._filled(default) if default else "")


def _unknown(text: str) -> str:
    return f"{UNKNOWN}{text}{UNKNOWN}"


def _compare(one: str, other: str, *, equal: bool) -> Truth:
    """Return whether two whole numbers are equal, or differ; None where one is no number."""
    try:
        return (int(one) == int(other)) == equal
    except ValueError:
        return None


def _not(one: Truth) -> Truth:
    return None if one is None else not one


def _and(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _or(one: Truth, other: Truth) -> Truth:
    return _not(_and(_not(one), _not(other)))

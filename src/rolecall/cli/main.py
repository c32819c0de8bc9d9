"""The command `rolecall` and its exit status: 0, 1 (the run failed) or 2 (bad input)."""

from __future__ import annotations

import signal
import sys
from functools import cache
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rolecall.cli import (
    machine_commands,
    making_commands,
    planning_commands,
    playing_commands,
    results_commands,
    serving_commands,
    trained_commands,
    watch_commands,
)
from rolecall.cli.output import fail
from rolecall.core.errors import SAID, ConfigError, StoppedError
from rolecall.runtime import interrupts
from rolecall.runtime.memory import keep_freed_memory


class Commands(TyperGroup):
    """The commands, which may save and clean up at Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Raises StoppedError at Ctrl-C, at which typer would end without a line."""
        interrupts.raise_interrupts()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise StoppedError(signal.SIGINT) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Train teams of LLM agents with reinforcement learning.",
)
groups = {
    "tiny": typer.Typer(no_args_is_help=True, help="The small models inside the package."),
    "serve": typer.Typer(no_args_is_help=True, help="Servers that other systems' clients know."),
}


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rolecall {version('rolecall')}")
        raise typer.Exit


@app.callback()
def options(
    asked: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train teams of LLM agents with reinforcement learning."""


app.command()(playing_commands.train)
app.command()(planning_commands.check)
app.command()(planning_commands.plan)
app.command("eval")(playing_commands.evaluate)
app.command()(playing_commands.crossplay)
app.command()(playing_commands.collect)
app.command()(trained_commands.ask)
app.command()(trained_commands.export)
app.command()(results_commands.show)
app.command()(results_commands.compare)
app.command()(results_commands.audit)
app.command()(results_commands.blame)
app.command()(results_commands.whatif)
app.command()(results_commands.spikes)
app.command()(results_commands.worth)
app.command()(watch_commands.watch)
app.command("import")(making_commands.import_config)
app.command()(making_commands.data)
app.command()(making_commands.fetch)
app.command()(machine_commands.doctor)
app.command()(machine_commands.info)
groups["serve"].command("environments")(serving_commands.serve_environments)
groups["serve"].command("sandbox")(serving_commands.serve_sandbox)
groups["serve"].command("search")(serving_commands.serve_search)
groups["serve"].command("team")(serving_commands.serve_team)


for group_name, group in groups.items():
    app.add_typer(group, name=group_name)
OWN = {*(info.name or info.callback.__name__ for info in app.registered_commands if info.callback)}


@cache
def add_commands_of_packages() -> None:
    """Add the commands that installed packages declare; `tiny.build` stands in the group `tiny`."""
    for point in sorted(entry_points(group="rolecall.commands"), key=lambda point: point.name):
        group, _, name = point.name.rpartition(".")
        (groups[group] if group else app).command(name)(point.load())


def main() -> None:
    """Entry point of `rolecall`."""
    keep_freed_memory()
    try:
        arguments = fill_json_value(sys.argv[1:])
        if next((word for word in arguments if not word.startswith("-")), "") not in OWN:
            add_commands_of_packages()
        if any(argument.startswith("--") for argument in arguments):
            from rolecall.cli.unknown_options import check_options

            check_options(arguments, typer.main.get_command(app))
        app(args=arguments, standalone_mode=True)
    except ConfigError as error:
        fail(*error.problems, status=2)
    except KeyboardInterrupt as error:
        _interrupted(error)
    except StoppedError as stopped:
        if stopped.status == interrupts.INTERRUPTED:
            _interrupted(stopped.__cause__)
        sys.exit(stopped.status)
    except (RuntimeError, OSError) as error:
        if _was_interrupted(error):
            _interrupted(error)
        fail(str(error), status=1)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is behind an error, even where it came while a class was made."""
    seen: set[int] = set()  # an error that tasks raised again may be its own cause
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _interrupted(error: BaseException | None) -> None:
    """End as after Ctrl-C, with a line where the command has not printed one."""
    if SAID not in getattr(error, "__notes__", ()):
        print(interrupts.LINE, file=sys.stderr)
    interrupts.forget_interrupt()
    sys.exit(interrupts.INTERRUPTED)


def fill_json_value(arguments: list[str]) -> list[str]:
    """Give `--json` a value if no file follows it: the JSON is then printed."""
    out: list[str] = []
    for number, argument in enumerate(arguments):
        out.append(argument)
        following = arguments[number + 1] if number + 1 < len(arguments) else ""
        if argument == "--json" and not (following.endswith(".json") or following == "-"):
            out.append("-")
    return out

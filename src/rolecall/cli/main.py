"""Declares the commands and their exit status: 0, 1 (the run failed) or 2 (bad input)."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rolecall.config.errors import ConfigError
from rolecall.errors import StoppedError
from rolecall.runtime.memory import keep_freed_memory

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train teams of LLM agents with reinforcement learning.",
)
tiny_app = typer.Typer(no_args_is_help=True, help="The small models inside the package.")
app.add_typer(tiny_app, name="tiny")
serve_app = typer.Typer(no_args_is_help=True, help="Servers that other systems' clients know.")
app.add_typer(serve_app, name="serve")

Source = Annotated[str, typer.Argument(metavar="RECIPE|FILE", help="A recipe or a YAML file.")]
SourceOrRun = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE|RUN", help="A recipe, a YAML file or a run folder.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Override keys.")
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="[FILE]", help="JSON to FILE, or to the output.")
]
TokenEnv = Annotated[
    str | None,
    typer.Option(
        help="Environment variable with a token that clients must send; needed off loopback."
    ),
]
Host = Annotated[str, typer.Option(help="Address; the default is this machine alone.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port.")]
INTERRUPTED = 130


@app.command()
def train(
    source: SourceOrRun,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="Run folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Only continue a run.")] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Continue a run with other values of any key.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Train a team; a second start in the same folder continues where the first one stopped."""
    from rolecall.learners.ranks import child, torchrun

    if torchrun.is_server():
        torchrun.serve_trainer(child.serve)
        return
    from rolecall.cli.train import train as command

    with people_on_stderr(json_file):
        found = command(
            source, overrides or [], output=output, resume=resume, allow_changes=allow_changes
        )
    torchrun.dismiss()
    emit(found, json_file)


@app.command()
def check(source: SourceOrRun, overrides: Overrides = None, json_file: Json = None) -> None:
    """Say what a config would do, with its effective values and memory; all mistakes at once."""
    from rolecall.cli.check import check as command

    with people_on_stderr(json_file):
        found = command(source, overrides or [])
    emit(found, json_file)


@app.command()
def plan(
    source: SourceOrRun,
    overrides: Overrides = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="As many GPUs, not this machine.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.1, max=1e6, help="GB of each of these GPUs.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Say what a run takes of each device's memory, whether it fits, and what would make it fit."""
    from rolecall.cli.plan import plan as command

    with people_on_stderr(json_file):
        found = command(source, overrides or [], gpus=gpus, memory_gb=memory)
    emit(found, json_file)


@app.command()
def simulate(
    source: SourceOrRun,
    overrides: Overrides = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="N|N,N|N..N", help="8, 8,16,64, or doublings 8..1024; default: as placed."
        ),
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML with measured figures.")
    ] = None,
    mtbf_hours: Annotated[
        float | None,
        typer.Option(min=1e-3, max=1e12, help="Hours between two failures of one GPU."),
    ] = None,
    environment_s: Annotated[
        float | None,
        typer.Option(min=0, max=1e7, help="Seconds of tools and worlds between two turns."),
    ] = None,
    restart_s: Annotated[
        float | None,
        typer.Option(min=0, max=1e7, help="Seconds until what was lost works again."),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Of the machine of a run without GPUs."),
    ] = None,
    json_file: Json = None,
) -> None:
    """Say how to split GPUs between engines and learners, what is waited for, and step times."""
    from rolecall.cli.simulate import simulate as command

    with people_on_stderr(json_file):
        found = command(
            source,
            overrides or [],
            gpus=gpus,
            measured=measured,
            mtbf_hours=mtbf_hours,
            environment_s=environment_s,
            restart_s=restart_s,
            cores=cores,
        )
    emit(found, json_file)


@app.command("eval")
def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE|MODEL", help="A run folder, a config, or with --recipe a model."
        ),
    ],
    overrides: Overrides = None,
    checkpoint: Annotated[
        str,
        typer.Option(help="latest, step-N, or best: of validation tasks, else of these."),
    ] = "latest",
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RECIPE|FILE", help="The team that MODEL plays, as every policy."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="POLICY=MODEL", help="The model of one policy.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of what was said and scored; it goes on there.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Score a team on its held-out tasks: avg@n and pass@k."""
    from rolecall.cli.evaluate import evaluate as command

    with people_on_stderr(json_file):
        found = command(
            source,
            overrides or [],
            checkpoint_name=checkpoint,
            recipe=recipe,
            models=model,
            output=output,
        )
    emit(found, json_file)


@app.command()
def crossplay(
    given: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN... [KEY.SUB=VALUE]...", help="Run folders, overrides."),
    ],
    checkpoint: Annotated[
        str, typer.Option(help="Of every run: latest, best or step-N.")
    ] = "latest",
    output: Annotated[
        Path | None, typer.Option(help="JSON file; default: evaluated/crossplay.json of the first.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Let agents of one run play with, or against, those of others: a matrix of mean scores."""
    from rolecall.cli.crossplay import crossplay as command

    runs = [part for part in given if "=" not in part]
    overrides = [part for part in given if "=" in part]
    with people_on_stderr(json_file):
        found = command(runs, overrides, checkpoint_name=checkpoint, output=output)
    emit(found, json_file)


@app.command()
def collect(
    source: SourceOrRun,
    output: Annotated[Path, typer.Option("--output", "-o", help="File: .jsonl or .parquet.")],
    overrides: Overrides = None,
    least: Annotated[
        float | None, typer.Option(help="Least reward of a turn that is kept.")
    ] = None,
    step_least: Annotated[
        float | None,
        typer.Option(help="Least own reward of a turn: a wrong step is shown and not imitated."),
    ] = None,
    best_of: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the N best attempts at each task.")
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Preferences: better and worse answers to one prompt.")
    ] = False,
    agent: Annotated[
        list[str] | None, typer.Option(help="Only turns of this agent; may be repeated.")
    ] = None,
    imitate: Annotated[
        str,
        typer.Option(
            metavar="agent|world|both", help="What agents said, or what the world showed next."
        ),
    ] = "agent",
    checkpoint: Annotated[str, typer.Option(help="Of a run: latest, step-N or best.")] = "latest",
    played: Annotated[
        str | None,
        typer.Option(
            metavar="train|test|validation", help="Play nothing: take what the run has played."
        ),
    ] = None,
    json_file: Json = None,
) -> None:
    """Play episodes and write a data set for `rollout.data`: demonstrations or preferences."""
    from rolecall.cli.collect import collect as command
    from rolecall.config.collecting import collect_config

    given: dict[str, Any] = {"least": least, "step_least": step_least, "best_of": best_of}
    given |= {"pairs": pairs, "agents": agent or [], "imitate": imitate}
    with people_on_stderr(json_file):
        found = command(
            source,
            overrides or [],
            output=output,
            options=collect_config(given),
            checkpoint_name=checkpoint,
            played=played,
        )
    emit(found, json_file)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    task: Annotated[str | None, typer.Option(help="Show this task's attempts.")] = None,
    step: Annotated[int | None, typer.Option(help="A training step; default: newest.")] = None,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Held-out tasks, as they were last evaluated.")
    ] = False,
    number: Annotated[int, typer.Option("-n", min=1, help="Best and worst to show.")] = 3,
    json_file: Json = None,
) -> None:
    """Read conversations: the best and the worst, or one task's attempts side by side."""
    from rolecall.monitor.terminal import show as command
    from rolecall.storage.run_folder import RunFolder

    folder = RunFolder.existing(run)
    found = command(
        folder, task=task, step=step, evaluation=evaluation, number=number, quiet=bool(json_file)
    )
    emit(found, json_file)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    b: Annotated[Path, typer.Argument(metavar="RUN", help="Another one.")],
    png: Annotated[Path | None, typer.Option(help="File for the curves of both.")] = None,
    json_file: Json = None,
) -> None:
    """Two runs side by side: keys that differ, what either came to, the same tasks in pairs."""
    from rolecall.monitor.two_runs import compare_runs
    from rolecall.storage.run_folder import RunFolder

    folders = [RunFolder.existing(run) for run in (a, b)]
    with people_on_stderr(json_file):
        found = compare_runs(*folders)
    if png is not None:
        from rolecall.monitor.overlay import draw_both

        draw_both(folders[0], folders[1], png)
    emit(found, json_file)


@app.command("import")
def import_config(
    given: Annotated[
        list[str],
        typer.Argument(metavar="FILE... [KEY.SUB=VALUE]...", help="Their files, our overrides."),
    ],
    source: Annotated[
        str | None, typer.Option("--from", metavar="mrlm|drmas|marti", help="Whose files.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="YAML file; default: the output.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Write what has a counterpart, leave out the rest.")
    ] = False,
) -> None:
    """Make a config of another framework's: MRLM's YAML, Dr. MAS's or MARTI's run scripts."""
    from rolecall.importers.importing import import_files

    files = [Path(part) for part in given if "=" not in part]
    overrides = [part for part in given if "=" in part]
    if not files:
        raise ConfigError("no file is given; name the YAML file or the run script to import")
    text, found = import_files(files, overrides, source=source, partial=partial)
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text)
    left = f"; fill in {', '.join(found.edits)}" if found.edits else ""
    typer.echo(f"Wrote {output}{left}", err=True)


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A data set; default: list them.")] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="[SPLIT=]FILE", help="Your own files, without the hub."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder; default: data/NAME.")] = None,
    json_file: Json = None,
) -> None:
    """Prepare a public data set: JSON Lines that environments read, each row checked."""
    from rolecall.data_sets.finding import fetch, given
    from rolecall.data_sets.known import LISTED, named
    from rolecall.data_sets.preparing import prepare

    if name is None:
        if source or output:
            raise ConfigError(
                "--from and --output need the name of a data set; write one of: "
                + ", ".join(d.name for d in LISTED)
            )
        for one in LISTED if json_file is None else []:
            splits = ", ".join(one.files)
            typer.echo(f"{one.name:16} {one.kind:13} {splits:12} {one.hub or one.needs}")
        emit([{"name": d.name, "kind": d.kind, "hub": d.hub, "splits": [*d.files]} for d in LISTED],
             json_file)  # fmt: skip
        return
    try:
        wanted = named(name)
        files = given(wanted, source) if source else fetch(wanted)
        found = prepare(wanted, files, output or Path("data") / wanted.name)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with people_on_stderr(json_file):
        typer.echo("\n".join(found.lines()))
    emit(asdict(found), json_file)


@app.command()
def prove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; default: all.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run the papers in the small: what must come out beside what does. Status 1 if one fails."""
    import torch

    from rolecall.proofs.all import prove as command
    from rolecall.proofs.claims import show_claims

    torch.set_num_threads(1)  # the games are so small that a second thread only waits
    try:
        with people_on_stderr(json_file):
            found = show_claims(command(names))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    emit(found, json_file)
    if not all(claim["ok"] for claim in found):
        raise typer.Exit(1)


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="drmas|PAPER", help="PAPER: qmix, cory, ...")],
    overrides: Overrides = None,
    table: Annotated[
        list[int] | None,
        typer.Option(help="drmas: 1 maths, 2 search, 3 normalisations; may be repeated."),
    ] = None,
    figure: Annotated[
        list[int] | None,
        typer.Option(help="drmas: gradient norms in maths (1), in search (3); 4 two models."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="small|published", help="drmas: models and data.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="drmas: runs of each setting.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder; default: reproduced/drmas-SIZE. It goes on there.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only write the configs and check rows and memory.")
    ] = False,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="With --check: not this machine.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.1, max=1e6, help="GB of each of these GPUs.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Train what a paper trained and show ours beside its numbers; without an option all of it."""
    from rolecall.cli.reproduce import DRMAS, reproduce_claims, reproduce_drmas

    given = {"--table": table, "--figure": figure, "--size": size, "--seeds": seeds,
             "--output": output, "--gpus": gpus, "--memory": memory, "--check": check or None,
             "overrides": overrides}  # fmt: skip
    with people_on_stderr(json_file):
        if paper == DRMAS:
            if size not in (None, "small", "published"):
                raise ConfigError(f"--size {size}: write small or published")
            emit(
                reproduce_drmas(
                    overrides or [],
                    tables=table or [],
                    shown=figure or [],
                    size=size or "small",  # type: ignore[arg-type]
                    seeds=3 if seeds is None else seeds,
                    output=output,
                    only_check=check,
                    gpus=gpus,
                    memory_gb=memory,
                ),
                json_file,
            )
            return
        if unused := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"{unused[0]} is for drmas alone; {paper} has one result")
        claims = reproduce_claims(paper)
    emit(claims, json_file)
    if not all(claim["ok"] for claim in claims):
        raise typer.Exit(1)


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; default: all.")
    ] = None,
    pairs: Annotated[int, typer.Option(help="Runs of each side, in turn.")] = 5,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny sizes: does it run at all?")] = False,
    against: Annotated[
        Path | None, typer.Option(help="Earlier JSON: status 1 where a ratio has become lower.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Measure speed beside the peers that are installed, in turn on the same work."""
    from rolecall.bench.regression import slower
    from rolecall.bench.run import bench as command

    try:
        with people_on_stderr(json_file):
            found = command(names, pairs=pairs, smoke=smoke)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    emit(found, json_file)
    worse = [] if against is None else slower(found, json.loads(against.read_text()))
    if worse:
        fail(*worse, status=1)
    if found["header"]["failed"]:
        raise typer.Exit(1)


@app.command()
def doctor(json_file: Json = None) -> None:
    """Try out this machine: devices, their speed, which fast paths hold, and what is missing."""
    from rolecall.cli.doctor import doctor as command

    with people_on_stderr(json_file):
        found = command()
    emit(found, json_file)
    if not found["ok"]:
        raise typer.Exit(1)


@app.command()
def info(json_file: Json = None) -> None:
    """Versions, devices, extras, and what a config can name."""
    from rolecall.cli.info import collect

    found = collect()
    if json_file is None:
        for name, value in found.items():
            listed = (
                ", ".join(f"{k} {v}" for k, v in value.items())
                if isinstance(value, dict)
                else ", ".join(value)
            )
            typer.echo(f"{name:13} {listed}")
    emit(found, json_file)


@tiny_app.command("build")
def tiny_build(
    source: Source,
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("tiny-model"),
    also: Annotated[
        list[str] | None, typer.Option(metavar="RECIPE|FILE", help="Another team that it plays.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="Time to fit it.")] = 8.0,
    episodes: Annotated[int, typer.Option(min=1, help="Demonstrations of a team.")] = 12_000,
    hidden: Annotated[int, typer.Option(min=8, help="Width, a multiple of 8.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Depth.")] = 4,
    vocab: Annotated[int, typer.Option(min=300, help="Most tokens beside the tags.")] = 480,
    seed: Annotated[int, typer.Option(help="Of weights and demonstrations.")] = 0,
) -> None:
    """Make a small model from the demonstrations that the workflows of recipes register."""
    from rolecall.cli.tiny import build_tiny
    from rolecall.tiny.build import Size

    size = Size(vocab=vocab, hidden=hidden, layers=layers, minutes=minutes, num_episodes=episodes)
    build_tiny([source, *(also or [])], overrides or [], output=output, size=size, seed=seed)


@serve_app.command("sandbox")
def serve_sandbox(
    host: Host = "127.0.0.1",
    port: Port = 8080,
    token_env: TokenEnv = None,
    concurrency: Annotated[int, typer.Option(min=0, help="Runs at once; 0: one a core.")] = 0,
    memory_mb: Annotated[int, typer.Option(min=16, help="Most memory of a run.")] = 4096,
    wall_s: Annotated[
        float, typer.Option(min=1, help="Most seconds of a run, whatever a request asks for.")
    ] = 300.0,
    unenforced: Annotated[
        list[str] | None,
        typer.Option(help="A limit it need not hold: memory, syscalls."),
    ] = None,
) -> None:
    """Run code for SandboxFusion's clients (POST /run_code, /run_jupyter), in bubblewrap."""
    from rolecall.serve.sandbox import serve

    try:
        serve(
            host,
            port,
            token=token_in(token_env),
            concurrency=concurrency,
            memory_mb=memory_mb,
            most_wall_s=wall_s,
            unenforced=tuple(unenforced or ()),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


@serve_app.command("search")
def serve_search(
    index: Annotated[
        Path | None,
        typer.Option(help="Folder of the index, made if it is not there; or a file of faiss."),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="JSON Lines: id and contents.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Of sentence-transformers: index vectors instead of BM25.")
    ] = None,
    reranker: Annotated[
        str | None, typer.Option(help="A cross-encoder of sentence-transformers to order by.")
    ] = None,
    topk: Annotated[int, typer.Option(min=1, help="Documents where a request names none.")] = 3,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token_env: TokenEnv = None,
) -> None:
    """Answer Search-R1's requests (POST /retrieve), with a passage index of your own."""
    from rolecall.serve.search import serve

    try:
        serve(
            index=index,
            corpus=corpus,
            model=model,
            reranker=reranker,
            host=host,
            port=port,
            topk=topk,
            token=token_in(token_env),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def token_in(variable: str | None) -> str:
    """Raises ConfigError for a variable that is named and not set."""
    token = "" if variable is None else os.environ.get(variable, "")
    if variable is not None and not token:
        raise ConfigError(f"--token-env: the environment variable {variable} is not set")
    return token


def people_on_stderr(json_file: str | None) -> AbstractContextManager[Any]:
    """Where JSON goes to the output, what people read goes to stderr."""
    return redirect_stdout(sys.stderr) if json_file == "-" else nullcontext()


def emit(found: Any, json_file: str | None) -> None:
    """Write what a command found as JSON, where that was asked for."""
    if json_file is None:
        return
    text = json.dumps(found, indent=2)
    if json_file == "-":
        typer.echo(text)
    else:
        Path(json_file).write_text(text + "\n")


def with_json_value(arguments: list[str]) -> list[str]:
    """`--json` may stand alone: without a file after it the JSON goes to the output."""
    out: list[str] = []
    for number, argument in enumerate(arguments):
        out.append(argument)
        following = arguments[number + 1] if number + 1 < len(arguments) else ""
        if argument == "--json" and not (following.endswith(".json") or following == "-"):
            out.append("-")
    return out


def main() -> None:
    """Entry point of `rolecall`."""
    keep_freed_memory()
    try:
        app(args=with_json_value(sys.argv[1:]), standalone_mode=True)
    except ConfigError as error:
        fail(*error.problems, status=2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except StoppedError as stopped:
        sys.exit(stopped.status)
    except (RuntimeError, OSError) as error:
        fail(str(error), status=1)


def fail(*problems: str, status: int) -> None:
    """A line on stderr for each problem."""
    for problem in problems:
        print(f"rolecall: {' '.join(problem.split())}", file=sys.stderr)
    sys.exit(status)

"""Trains and evaluates from Python, as the commands do, with plain arguments and return values.

Where an event loop runs already, as in a notebook, the work has a thread of its own. `train` and
`evaluate` block that loop until they end; `await train_async(...)` and `evaluate_async` do not.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.runs.live_config import LiveConfig

if TYPE_CHECKING:
    from rolecall.runs.stop import Stop
    from rolecall.storage.loaded_run import LoadedRun

Source = str | Path | Mapping[str, Any]
Overrides = Mapping[str, Any] | Iterable[str]


def train(
    config: Source,
    overrides: Overrides = (),
    *,
    output: str | Path | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    checkpoint: str | None = None,
    **sections: Any,
) -> Record:
    """Train a recipe, a YAML file, a config as a mapping, or go on with a run folder.

    `train("math", trainer={"steps": 5})` overrides sections of the config by name; `overrides` are
    {"trainer.steps": 5} or ["trainer.steps=5"]. Values may be objects: `(model, tokenizer)` of
    transformers as the base of a policy, functions and classes, also those of a notebook, an
    environment that has been made, and a list of environments, which are mixed. With
    `checkpoint` (step-N or best) a new run goes on from that one of a run folder.
    Returns the summary, as in the run's summary.json.
    Raises ConfigError for what does not fit, and RunFailedError where nothing was trained.
    """
    from rolecall.runs.stop import Stop

    stop = Stop()
    work = partial(
        _train, config, overrides, output=output, resume=resume, allow_changes=allow_changes,
        checkpoint=checkpoint, stop=stop, **sections,
    )  # fmt: skip
    return _outside_of_loops(work, interrupt=stop.end_now)


def _train(
    config: Source,
    overrides: Overrides,
    *,
    stop: Stop,
    output: str | Path | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    checkpoint: str | None = None,
    **sections: Any,
) -> Record:
    from rolecall.runs import train as command

    live = LiveConfig()
    with _named(config, live) as source:
        return command.train(
            source,
            [*live.overrides(overrides), *live.sections(sections)],
            output=None if output is None else Path(output),
            resume=resume,
            allow_changes=allow_changes,
            checkpoint=checkpoint,
            stop=stop,
        )


def evaluate(
    config: Source,
    overrides: Overrides = (),
    *,
    checkpoint: str = "latest",
    output: str | Path | None = None,
    **sections: Any,
) -> Record:
    """Score a run folder's checkpoint (latest, best or step-N), or a config's untrained team.

    What was said and scored is kept in `output`, or in the run's folder, and one that was stopped
    goes on there.
    Returns {"avg@8": .., "avg@8_margin": .., "pass@8": .., "by_source": {..}, ...}.
    """
    from rolecall.runs import evaluate as command

    live = LiveConfig()
    with _named(config, live) as source:
        return _outside_of_loops(
            lambda: command.evaluate(
                source,
                [*live.overrides(overrides), *live.sections(sections)],
                checkpoint_name=checkpoint,
                output=None if output is None else Path(output),
            )
        )


async def train_async(config: Source, overrides: Overrides = (), **options: Any) -> Record:
    """Do what `train` does, with the same arguments, while the event loop goes on.

    A cancellation stops the run, which saves first.
    """
    from rolecall.runs.stop import Stop

    stop = Stop()
    work = partial(_train, config, overrides, stop=stop, **options)
    return await _beside_the_loop(work, interrupt=stop.end_now)


async def evaluate_async(config: Source, overrides: Overrides = (), **options: Any) -> Record:
    """Do what `evaluate` does, with the same arguments, while the event loop goes on."""
    return await _beside_the_loop(partial(evaluate, config, overrides, **options))


def load_run(path: str | Path) -> LoadedRun:
    """Load a run folder: `.config`, `.summary`, `.metrics()`, `.episodes()`.

    The last two give tables: `load_run("runs/math").episodes(split="test", frame="pandas")`; frames
    are arrow, pandas and polars. Raises ConfigError where there is no run.
    """
    from rolecall.storage.loaded_run import LoadedRun

    return LoadedRun(path)


@contextmanager
def _named(config: Source, live: LiveConfig) -> Iterator[str]:
    """Yield the name of a file that holds a mapping; problems of a mapping name no file."""
    if not isinstance(config, Mapping):
        yield str(config)
        return
    with tempfile.TemporaryDirectory(prefix="rolecall-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump(live.convert(config), sort_keys=False))
        try:
            yield str(file)
        except ConfigError as error:
            begin = re.compile(rf"^{re.escape(str(file))}(:\d+)?: ")
            raise ConfigError(*(begin.sub("", one) for one in error.problems)) from error


def _outside_of_loops(
    work: Callable[[], Record], *, interrupt: Callable[[], None] | None = None
) -> Record:
    """Run the work outside of event loops.

    Ctrl-C calls `interrupt` where the work has a thread of its own, and waits for its end.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    done: Future[Record] = Future()
    thread = threading.Thread(target=_fulfil, args=(done, work), daemon=True, name="rolecall")
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        if interrupt is not None:
            interrupt()
            thread.join()
        raise


async def _beside_the_loop(
    work: Callable[[], Record], *, interrupt: Callable[[], None] | None = None
) -> Record:
    """Do the work on a thread; where it is cancelled, `interrupt` is called and its end awaited."""
    done: Future[Record] = Future()
    threading.Thread(target=_fulfil, args=(done, work), daemon=True, name="rolecall").start()
    waiting = asyncio.wrap_future(done)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if interrupt is not None:
            interrupt()
            await asyncio.wait([waiting])
            waiting.exception()  # it is looked at, so that asyncio prints nothing
        raise


def _fulfil(done: Future[Record], work: Callable[[], Record]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)

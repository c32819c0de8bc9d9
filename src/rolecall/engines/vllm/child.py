"""Runs vLLM's AsyncLLM in a process of its own and answers the driver's calls: its main function.

The driver is at the other end of a socket whose number is the first argument; the second one is
the driver's process. This process ends with the driver, however that ends, and with it all that
vLLM has started.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import sys
import traceback
from typing import TYPE_CHECKING

from rolecall.core.json_types import Options
from rolecall.engines.vllm import wire
from rolecall.runtime.die_with_parent import end_with_parent

if TYPE_CHECKING:
    from rolecall.engines.vllm.engine_args import Launch
    from rolecall.engines.vllm.service import Service


ENGINE_DIED = 70  # exit code where the process under this one that computes is gone
SHUTDOWN_S = 5.0


def end_with_vllm() -> None:
    """Make this process, which vLLM has started, end with its parent."""
    end_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it was gone before
        os._exit(1)


# Processes that vLLM forks run it by the hook in `main`; those that it spawns import this file.
if __name__ == "__mp_main__":
    end_with_vllm()


def main() -> None:
    number, driver = int(sys.argv[1]), int(sys.argv[2])
    end_with_parent()
    if os.getppid() != driver:
        return
    connection = socket.socket(fileno=number)
    connection.set_inheritable(False)

    def after_fork() -> None:
        end_with_vllm()
        connection.close()  # or the driver would not see that this process has ended

    os.register_at_fork(after_in_child=after_fork)
    launch = wire.read(connection)
    if launch is not None:
        asyncio.run(serve(connection, launch))
        os._exit(0)  # all has been shut down; vLLM's objects would try again when they are deleted


async def serve(connection: socket.socket, launch: Launch) -> None:
    """Start vLLM and answer calls, many at once, until the driver says `close` or is gone."""
    from rolecall.engines.vllm.service import Service, start

    llm = start(launch)
    try:
        reader, writer = await asyncio.open_connection(sock=connection)
        service = Service(llm, launch)
        try:
            writer.write(wire.pack((0, True, await service.begin())))
        except ValueError as error:
            writer.write(wire.pack((0, False, wire.Failure("value", str(error)))))
        tasks: dict[int, asyncio.Task[None]] = {}
        while (message := await wire.read_from(reader)) is not None:
            call, method, _ = message
            if method == "close":
                break
            if method == "drop":
                if call in tasks:
                    tasks[call].cancel()
                continue
            task = tasks[call] = asyncio.create_task(_answer(service, writer, message))
            task.add_done_callback(lambda _, call=call: tasks.pop(call))  # type: ignore[misc]
        for task in list(tasks.values()):
            task.cancel()
        writer.close()
    finally:
        llm.shutdown(timeout=SHUTDOWN_S)


async def _answer(
    service: Service, writer: asyncio.StreamWriter, message: tuple[int, str, Options]
) -> None:
    from vllm.exceptions import VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError

    call, method, arguments = message
    done, result = False, None
    try:
        result = await getattr(service, method)(**arguments)
        done = True
    except EngineDeadError:
        print("vLLM's engine core has ended", file=sys.stderr, flush=True)
        os._exit(ENGINE_DIED)
    except (ValueError, VLLMClientError) as error:
        result = wire.Failure("value", str(error))
    except Exception as error:
        traceback.print_exc()
        result = wire.Failure("engine", f"{type(error).__name__}: {error}")
    writer.write(wire.pack((call, done, result)))
    await writer.drain()


if __name__ == "__main__":
    main()

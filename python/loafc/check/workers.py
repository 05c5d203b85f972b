"""Runs tasks in processes of their own, so that one that crashes or hangs is a result and not the end.

Workers are forked from this process when it has imported all that tasks need: a new one starts in milliseconds.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

# Compiled code and caches grow: a process is replaced after this many tasks.
_TASKS_PER_PROCESS = 100


@dataclass(frozen=True)
class Lost:
    """What became of a task whose process ended before it did."""

    reason: str


@dataclass
class _Worker:
    process: Any
    connection: Connection
    task: Any = None
    deadline: float = 0.0
    tasks: int = 0

    def give(self, task: Any, seconds: float) -> None:
        self.task = task
        self.tasks += 1
        self.deadline = time.monotonic() + seconds
        self.connection.send(task)

    def result(self) -> Any | Lost:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            killed = code is not None and code < 0
            return Lost(f"crashes with {signal.Signals(-code).name}" if killed else f"ends with status {code}")

    def stop(self) -> None:
        self.connection.close()
        self.process.join()

    def kill(self) -> None:
        self.process.kill()
        self.stop()


def run_all(
    tasks: Iterable[Any], work: Callable[[Any], Any], count: int, seconds: float
) -> Iterator[tuple[Any, Any | Lost]]:
    """Each task with its result, in the order in which they are done, from ``count`` processes.

    A task that takes longer than ``seconds``, or whose process dies, gives `Lost`.
    """
    waiting = list(tasks)[::-1]
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < count:
                workers.append(_start(work, workers))
                workers[-1].give(waiting.pop(), seconds)
            until_deadline = min(w.deadline for w in workers) - time.monotonic()
            ready = wait([w.connection for w in workers], max(0.0, until_deadline))
            for worker in list(workers):
                if worker.connection in ready:
                    task, result = worker.task, worker.result()
                    if isinstance(result, Lost) or worker.tasks >= _TASKS_PER_PROCESS or not waiting:
                        workers.remove(worker)
                        worker.stop()
                    else:
                        worker.give(waiting.pop(), seconds)
                    yield task, result
                elif worker.deadline <= time.monotonic():
                    workers.remove(worker)
                    worker.kill()
                    yield worker.task, Lost(f"takes longer than {seconds:.0f} s")
    finally:
        for worker in workers:
            worker.kill()


def _start(work: Callable[[Any], Any], others: list[_Worker]) -> _Worker:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    # The child inherits the ends that stay here. While it holds them, no worker would notice that this process ended.
    inherited = [ours, *(w.connection for w in others)]
    process = context.Process(target=_serve, args=(theirs, inherited, work), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(connection: Connection, inherited: list[Connection], work: Callable[[Any], Any]) -> None:
    for other in inherited:
        other.close()
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(work(task))

"""Worker processes for rewards: killable, each call with a wall-clock limit, and none left behind.

A small process is forked when the pool is made, before a model is loaded or a thread of torch runs, and it forks the
workers: a worker that hangs is killed with everything it has started, and the next one begins as clean as the first.
Functions need not be picklable (lambdas, objects with state); their arguments and results are.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from covey.rewards.functions import InvalidResult, RewardError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

POLL_S = 0.5
"""Seconds between two looks at the stop signal while all workers are busy."""

FailureKind = Literal["error", "invalid", "timeout", "died", "nan"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that gave no result."""

    kind: FailureKind
    text: str
    """For the user: the traceback, what is wrong with the result, or what happened."""


@dataclass(frozen=True, slots=True)
class Call:
    """``functions[function](*arguments)``, which may take ``limit_s`` seconds."""

    function: int
    arguments: tuple[Any, ...]
    limit_s: float


_OUR_ENDS: set[int] = set()
"""File descriptors by which this process knows that others live; a forked process must not keep them open."""


@dataclass
class _Worker:
    pid: int
    connection: Connection
    call: int = -1
    deadline: float = 0.0


class WorkerPool:
    """``size`` processes that can call ``functions``; made early, closed at the end (also by the garbage collector)."""

    def __init__(self, functions: Sequence[Callable[..., Any]], size: int) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for descriptor in (*_OUR_ENDS, ours.fileno()):
                os.close(descriptor)
            _serve(theirs, functions)
        theirs.close()
        _OUR_ENDS.add(ours.fileno())
        self._control, self._size = ours, size
        self._workers: list[_Worker] = []
        self._close = weakref.finalize(self, _stop, ours, pid)

    def run(self, calls: Sequence[Call], check: Callable[[], None] = lambda: None) -> list[Any | Failure]:
        """Results in the order of the calls, a Failure for one that raised, took too long or took its process down.

        ``check`` is called now and then and may raise; the busy workers are then killed.
        """
        results: list[Any | Failure] = [None] * len(calls)
        waiting = deque(range(len(calls)))
        try:
            while waiting or any(worker.call >= 0 for worker in self._workers):
                self._hand_out(calls, waiting)
                self._collect(calls, results)
                check()
        finally:
            for worker in [w for w in self._workers if w.call >= 0]:
                self._kill(worker)
        return results

    def close(self) -> None:
        """Kill all workers and the process that forks them; safe to call twice."""
        for worker in list(self._workers):
            self._kill(worker)
        self._close()

    def _hand_out(self, calls: Sequence[Call], waiting: deque[int]) -> None:
        while waiting:
            idle = next((w for w in self._workers if w.call < 0), None)
            if idle is None:
                if len(self._workers) >= self._size:
                    return
                self._workers.append(idle := self._fork())
            number = waiting.popleft()
            call = calls[number]
            idle.call, idle.deadline = number, time.monotonic() + call.limit_s
            try:
                idle.connection.send_bytes(pickle.dumps((call.function, call.arguments)))
            except OSError:  # it died while it was idle: not the fault of this call
                self._kill(idle)
                waiting.appendleft(number)

    def _collect(self, calls: Sequence[Call], results: list[Any | Failure]) -> None:
        from multiprocessing.connection import wait  # slow to import, and not needed for a help text

        busy = [worker for worker in self._workers if worker.call >= 0]
        left = min(worker.deadline for worker in busy) - time.monotonic()
        ready = wait([worker.connection for worker in busy], timeout=max(0.0, min(left, POLL_S)))
        now = time.monotonic()
        for worker in busy:
            if worker.connection in ready:
                try:
                    results[worker.call] = pickle.loads(worker.connection.recv_bytes())
                    worker.call = -1
                except (EOFError, OSError):
                    results[worker.call] = Failure("died", "its process ended (a crash, os._exit, or out of memory)")
                    self._kill(worker)
            elif now > worker.deadline:
                limit = calls[worker.call].limit_s
                results[worker.call] = Failure("timeout", f"no result within {limit:g} s; its process was killed")
                self._kill(worker)

    def _fork(self) -> _Worker:
        from multiprocessing.connection import Connection

        self._control.sendall(b"f")
        data, descriptors, _, _ = socket.recv_fds(self._control, 4, 1)
        if len(data) != 4:
            raise RuntimeError("the process that starts the reward workers is gone")
        _OUR_ENDS.add(descriptors[0])
        return _Worker(struct.unpack("i", data)[0], Connection(descriptors[0]))

    def _kill(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        _OUR_ENDS.discard(worker.connection.fileno())
        worker.connection.close()
        with contextlib.suppress(ProcessLookupError, OSError):
            self._control.sendall(b"k" + struct.pack("i", worker.pid))
            self._control.recv(1)  # it is gone when this returns


def _stop(control: socket.socket, pid: int) -> None:
    """End the forking process, which ends the workers."""
    _OUR_ENDS.discard(control.fileno())
    control.close()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _serve(control: socket.socket, functions: Sequence[Callable[..., Any]]) -> None:
    """The forking process: forks and kills workers as asked, and takes all of them with it when the trainer is gone."""
    from multiprocessing.connection import Connection

    code = 1
    try:
        os.setsid()  # Ctrl-C is for the trainer
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        workers: set[int] = set()
        while request := control.recv(1):
            if request == b"f":
                ours, theirs = socket.socketpair()
                pid = os.fork()
                if pid == 0:
                    control.close()
                    ours.close()
                    _work(Connection(theirs.detach()), functions)
                theirs.close()
                workers.add(pid)
                socket.send_fds(control, [struct.pack("i", pid)], [ours.fileno()])
                ours.close()
            else:
                (pid,) = struct.unpack("i", control.recv(4, socket.MSG_WAITALL))
                _end(pid)
                workers.discard(pid)
                control.sendall(b"d")
        for pid in workers:
            _end(pid)
        code = 0
    finally:
        os._exit(code)


def _end(pid: int) -> None:
    """Kill a worker with everything it has started, and wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not have a group of its own yet
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _work(connection: Connection, functions: Sequence[Callable[..., Any]]) -> None:
    """A worker: one call after another until the trainer closes the connection."""
    try:
        os.setsid()
        os.dup2(2, 1)  # what a reward prints must not get into the trainer's machine-readable output
        sys.stdout = sys.stderr
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # its thread pool does not survive a fork
        while True:
            number, arguments = pickle.loads(connection.recv_bytes())
            connection.send_bytes(pickle.dumps(_result(functions[number], arguments)))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)


def _result(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        result = function(*arguments)
        pickle.dumps(result)
        return result
    except InvalidResult as error:
        return Failure("invalid", str(error))
    except RewardError as error:
        return Failure("error", str(error))
    except Exception:
        return Failure("error", traceback.format_exc().rstrip())

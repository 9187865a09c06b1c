"""Worker processes for rewards: killable, each call with a wall-clock limit, and none left behind.

A small process is forked when the pool is made, as early in a run as can be, and it forks the workers: a worker that
hangs is killed with its process group, and the next one begins as clean as the first. Functions need not be picklable
(lambdas, objects with state); their arguments and results are.
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

FailureKind = Literal["error", "invalid", "timeout", "died", "nan", "given up"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that gave no result."""

    kind: FailureKind
    text: str
    """For the user: the traceback, what is wrong with the result, or what happened."""

    @property
    def last_line(self) -> str:
        """Of a traceback, the exception."""
        return self.text.splitlines()[-1]


@dataclass(frozen=True, slots=True)
class Call:
    """``functions[function](*arguments)``, which may take ``limit_s`` seconds."""

    function: int
    arguments: tuple[Any, ...]
    limit_s: float


class Unpicklable(Exception):
    """The arguments of the call ``number`` can't be sent to another process."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(str(error))
        self.number = number


_OUR_ENDS: dict[int, set[int]] = {}
"""Per pool, the file descriptors by which others know that this process lives; a fork must not keep them open."""


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
            try:  # nothing may get out of here: it would be a second trainer
                for descriptor in {ours.fileno()}.union(*_OUR_ENDS.values()):
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
                _serve(theirs, functions)
            finally:
                os._exit(1)
        theirs.close()
        self._ends = _OUR_ENDS[pid] = {ours.fileno()}
        self._control, self._size, self._pid = ours, size, pid
        self._workers: list[_Worker] = []
        self._close = weakref.finalize(self, _stop, ours, pid)

    def run(
        self,
        calls: Sequence[Call],
        check: Callable[[], None] = lambda: None,
        hopeless: Callable[[int, Any], bool] | None = None,
    ) -> list[Any | Failure]:
        """Results in the order of the calls, a Failure for one that raised, took too long or took its process down.

        ``check`` is called now and then and may raise; the busy workers are then killed. Once ``hopeless`` says so of
        a call's number and result, the calls that are left are given up. Unpicklable when arguments can't be sent.
        """
        results: list[Any | Failure] = [Failure("given up", "not asked: too many have failed")] * len(calls)
        waiting = deque(range(len(calls)))
        try:
            while waiting or any(worker.call >= 0 for worker in self._workers):
                self._hand_out(calls, waiting)
                ended = self._collect(calls, results)
                if hopeless is not None and any(hopeless(number, results[number]) for number in ended):
                    break
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
            call = calls[waiting[0]]
            try:
                message = pickle.dumps((call.function, call.arguments))
            except Exception as error:
                raise Unpicklable(waiting[0], error) from error
            try:
                idle.connection.send_bytes(message)
            except OSError:  # it died while it was idle: not the fault of this call
                self._kill(idle)
                continue
            idle.call, idle.deadline = waiting.popleft(), time.monotonic() + call.limit_s

    def _collect(self, calls: Sequence[Call], results: list[Any | Failure]) -> list[int]:
        """Wait a little for results; the numbers of the calls that ended."""
        from multiprocessing.connection import wait  # slow to import, and not needed for a help text

        busy = [worker for worker in self._workers if worker.call >= 0]
        left = min(worker.deadline for worker in busy) - time.monotonic()
        ready = wait([worker.connection for worker in busy], timeout=max(0.0, min(left, POLL_S)))
        now = time.monotonic()
        ended = []
        for worker in busy:
            number = worker.call
            if worker.connection in ready:
                try:
                    results[number] = pickle.loads(worker.connection.recv_bytes())
                    worker.call = -1
                except (EOFError, OSError):
                    results[number] = Failure("died", "its process ended (a crash, os._exit, or out of memory)")
                    self._kill(worker)
            elif now > worker.deadline:
                limit = calls[number].limit_s
                results[number] = Failure("timeout", f"no result within {limit:g} s; its process was killed")
                self._kill(worker)
            else:
                continue
            ended.append(number)
        return ended

    def _fork(self) -> _Worker:
        """A new worker; RewardError when the process that makes them is gone or can't."""
        from multiprocessing.connection import Connection

        data, descriptors = b"", list[int]()
        with contextlib.suppress(OSError):
            self._control.sendall(b"f")
            data, descriptors, _, _ = socket.recv_fds(self._control, 4, 1)
        if len(data) != 4 or not descriptors:
            raise RewardError("no process can be started for the rewards: out of memory or processes, or killed")
        os.set_inheritable(descriptors[0], False)
        self._ends.add(descriptors[0])
        return _Worker(struct.unpack("i", data)[0], Connection(descriptors[0]))

    def _kill(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._ends.discard(worker.connection.fileno())
        worker.connection.close()
        try:
            self._control.sendall(b"k" + struct.pack("i", worker.pid))
            self._control.recv(1)  # it is gone when this returns
        except OSError:  # the process that would do it is gone itself
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)


def _stop(control: socket.socket, pid: int) -> None:
    """End the forking process, which ends the workers."""
    del _OUR_ENDS[pid]
    control.close()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _serve(control: socket.socket, functions: Sequence[Callable[..., Any]]) -> None:
    """The forking process: forks and kills workers as asked, and takes all of them with it when the trainer is gone."""
    from multiprocessing.connection import Connection

    os.setsid()  # Ctrl-C is for the trainer
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    workers: set[int] = set()
    try:
        while request := control.recv(1):
            if request == b"k":
                (pid,) = struct.unpack("i", control.recv(4, socket.MSG_WAITALL))
                _end(pid)
                workers.discard(pid)
                control.sendall(b"d")
                continue
            ours, theirs = socket.socketpair()
            try:
                pid = os.fork()
            except OSError:
                control.sendall(struct.pack("i", -1))  # without a descriptor: it could not be done
                continue
            if pid == 0:
                try:
                    control.close()
                    ours.close()
                    _work(Connection(theirs.detach()), functions)
                finally:
                    os._exit(0)
            theirs.close()
            workers.add(pid)
            socket.send_fds(control, [struct.pack("i", pid)], [ours.fileno()])
            ours.close()
    finally:
        for pid in workers:
            _end(pid)


def _end(pid: int) -> None:
    """Kill a worker with its process group, and wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not have a group of its own yet
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _work(connection: Connection, functions: Sequence[Callable[..., Any]]) -> None:
    """A worker: one call after another until the trainer closes the connection."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # what a reward prints must not get into the trainer's machine-readable output, nor through its live display
    os.dup2(2, 1)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # its thread pool does not survive a fork
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = connection.recv_bytes()
            connection.send_bytes(_result(message, functions))


def _result(message: bytes, functions: Sequence[Callable[..., Any]]) -> bytes:
    def answer() -> bytes:
        number, arguments = pickle.loads(message)
        return pickle.dumps(functions[number](*arguments))

    result = attempt(answer)
    return pickle.dumps(result) if isinstance(result, Failure) else result


def attempt(call: Callable[[], Any]) -> Any | Failure:
    """What a call gives, or how it failed."""
    try:
        return call()
    except InvalidResult as error:
        return Failure("invalid", str(error))
    except RewardError as error:
        return Failure("error", str(error))
    except Exception:
        return Failure("error", traceback.format_exc().rstrip())

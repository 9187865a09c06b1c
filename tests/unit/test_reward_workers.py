"""Rewards in processes of their own: limits, failures, and nothing left behind (known faults 14 and 15)."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.rewards import RewardError, RewardLimits, RewardSet, build_reward_set
from covey.rewards.functions import InvalidResult
from covey.types import Completion, Prompt

Build = Callable[..., RewardSet]


def descendants() -> set[int]:
    """Processes that come from this one, zombies included; a new session does not hide them."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in found | {os.getpid()}} - found:
        found |= more
    return found


def rows(n: int = 4) -> tuple[list[Prompt], list[Completion]]:
    prompts = [Prompt(f"p{i}", ({"role": "user", "content": f"q{i}"},), {"i": i}) for i in range(n)]
    return prompts, [Completion((1,), (-0.5,), str(i), "stop") for i in range(n)]


def scores(rewards: RewardSet, n: int = 4) -> list[float | None]:
    return [item.total for item in rewards.score(*rows(n)).scored]


@pytest.fixture
def build() -> Iterator[Build]:
    """Reward sets with two workers; afterwards no process may be left."""
    gc.collect()
    before = descendants()
    made: list[RewardSet] = []

    def make(*functions: Callable[..., Any], **limits: Any) -> RewardSet:
        made.append(build_reward_set(functions, limits=RewardLimits(**{"workers": 2, "timeout_s": 10.0, **limits})))
        return made[-1]

    yield make
    for rewards in made:
        rewards.close()
        rewards.close()
    assert descendants() <= before


def hangs_on_one(prompt: Prompt, completion: Completion) -> float:
    if completion.text == "1":
        time.sleep(60)
    return float(completion.text)


def hangs_in_a_batch(completions: list[str], **columns: Any) -> list[float]:
    if "1" in completions:
        time.sleep(60)
    return [float(text) for text in completions]


def test_twenty_hanging_rewards_leave_nothing_behind(build: Build) -> None:
    """Known fault 15: the others keep their scores, the hanging one has none, and there are never more processes."""
    rewards = build(hangs_on_one, timeout_s=0.2, max_failures=1.0)
    counts = set()
    for _ in range(20):
        began = time.monotonic()
        assert scores(rewards) == [0.0, None, 2.0, 3.0]
        assert time.monotonic() - began < 3
        counts.add(len(descendants()))
    assert max(counts) <= 3  # the one that forks, and two workers


def test_a_batch_that_hangs_is_asked_one_by_one(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="covey.rewards"):
        batch = build(hangs_in_a_batch, timeout_s=0.3).score(*rows())
    assert [item.total for item in batch.scored] == [0.0, None, 2.0, 3.0]
    assert batch.failures == {"hangs_in_a_batch": 1} and batch.stats["hangs_in_a_batch"].n == 3
    assert "took too long on a whole batch; asking it one by one" in caplog.text
    assert "failed on 1 of 4 completions (1 timeout), which get no score of it: no result within 0.3 s" in caplog.text


def test_what_a_hanging_reward_started_goes_with_it(build: Build) -> None:
    def starts_another(prompt: Prompt, completion: Completion) -> float:
        subprocess.run(["sleep", "60"], check=True)
        return 1.0

    with pytest.raises(RewardError, match="took too long"):
        scores(build(starts_another, timeout_s=0.3), 2)


def test_exceptions_and_crashes_are_counted_and_leave_the_others_alone(build: Build) -> None:
    def crashes(prompt: Prompt, completion: Completion) -> float:
        if completion.text == "0":
            os._exit(3)
        if completion.text == "1":
            os.kill(os.getpid(), signal.SIGSEGV)
        if completion.text == "2":
            raise KeyError("gold")
        if completion.text == "3":
            return float("nan")
        return 1.0

    def fine(prompt: Prompt, completion: Completion) -> float:
        return 10.0

    batch = build(crashes, fine).score(*rows(6))
    assert [item.rewards["crashes"] for item in batch.scored] == [None] * 4 + [1.0, 1.0]
    # not 10: the sum of the others would be another reward, and a failed penalty would be paid
    assert [item.total for item in batch.scored] == [None] * 4 + [11.0, 11.0]
    assert batch.failures == {"crashes": 4, "fine": 0}


def test_too_many_failures_stop_with_the_first_traceback(build: Build) -> None:
    def sometimes(prompt: Prompt, completion: Completion) -> float:
        return 1.0 / (int(completion.text) % 5)

    def never(completions: list[str]) -> list[float]:
        raise LookupError("no judge")

    rewards = build(sometimes, max_failures=0.1)
    assert scores(rewards, 20)[0] is None  # a fifth fails, but these are too few to say so
    with pytest.raises(RewardError, match=r"'sometimes' failed on 4 of 20 completions, 20% of the last 40") as caught:
        scores(rewards, 20)
    assert "1.0 / (int(completion.text) % 5)" in str(caught.value) and "ZeroDivisionError" in str(caught.value)
    with pytest.raises(RewardError, match=r"(?s)'never' failed on 4 of 4 .*LookupError: no judge"):
        scores(build(never))


def test_a_wrong_number_of_scores_stops_from_a_worker_too(build: Build) -> None:
    def one(completions: list[str]) -> list[float]:
        return [1.0]

    with pytest.raises(InvalidResult, match=r"a list of 4 scores .* it returned 1"):
        scores(build(one))


def test_functions_need_not_be_picklable_and_keep_their_state(build: Build) -> None:
    seen: list[str] = []

    def counts(completions: list[str], i: list[int], trainer_state: Any, **columns: Any) -> list[float]:
        seen.extend(completions)
        return [float(len(seen) + k + trainer_state.global_step) for k in i]

    rewards = build(counts, lambda prompt, completion: prompt.columns["i"], workers=1)
    rewards.at(100, 200)
    assert scores(rewards, 2) == [102.0, 104.0]
    assert scores(rewards, 2) == [104.0, 106.0] and seen == []  # the state is the worker's


def test_what_a_reward_prints_stays_out_of_standard_output(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    def chatty(prompt: Prompt, completion: Completion) -> float:
        print("hello from a reward", flush=True)
        return 1.0

    assert scores(build(chatty), 1) == [1.0]
    said = capfd.readouterr()
    assert "hello" not in said.out and "hello from a reward" in said.err


def test_a_stop_request_ends_the_wait(build: Build) -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    rewards = build(hangs_on_one, timeout_s=60.0)
    rewards.check = stop
    began = time.monotonic()
    with pytest.raises(Stop):
        scores(rewards)
    assert time.monotonic() - began < 5 and len(descendants()) <= 2
    rewards.check = lambda: None
    assert rewards.score(rows()[0][2:], rows()[1][2:]).scored[0].total == 2.0  # and it can be used again


def test_workers_end_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(
        "import os, signal, sys, threading, time\n"
        "from covey.rewards import RewardLimits, build_reward_set\n"
        "from covey.types import Completion, Prompt\n"
        "def hangs(prompt, completion):\n"
        "    print('pid', os.getpid(), file=sys.stderr, flush=True)\n"
        "    time.sleep(120)\n"
        "rewards = build_reward_set([hangs], limits=RewardLimits(workers=1, timeout_s=100))\n"
        "threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"
        "rewards.score([Prompt('p', ())], [Completion((1,), (0.0,), 'a', 'stop')])\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    found = re.search(r"pid (\d+)", ended.stderr)
    assert found is not None
    for _ in range(50):
        if not Path(f"/proc/{found[1]}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the hanging worker outlived its trainer")


def test_asynchronous_rewards(build: Build) -> None:
    async def judge(completions: list[str], **columns: Any) -> list[float]:
        import asyncio

        async def one(text: str) -> float:
            await asyncio.sleep(0.05)
            return float(text)

        return list(await asyncio.gather(*map(one, completions)))

    async def alone(prompt: Prompt, completion: Completion) -> float:
        return 0.5

    class Judge:
        async def __call__(self, completions: list[str], **columns: Any) -> list[float]:
            return [1.0] * len(completions)

    assert scores(build(judge, alone, Judge)) == [1.5, 2.5, 3.5, 4.5]
    assert scores(build_reward_set([judge, alone, Judge])) == [1.5, 2.5, 3.5, 4.5]  # type: ignore[arg-type]


def test_shipped_rewards_need_no_process() -> None:
    gc.collect()
    before = descendants()
    with build_reward_set(["format"], limits=RewardLimits(workers=2)) as rewards:
        assert descendants() == before
        assert scores(rewards, 1) == [0.0]


def test_a_failed_reward_of_weight_0_costs_nothing() -> None:
    def fails(prompt: Prompt, completion: Completion) -> float:
        return 1.0 / int(completion.text)

    def fine(prompt: Prompt, completion: Completion) -> float:
        return 2.0

    assert scores(build_reward_set([fails, fine], weights=[0.0, 1.0])) == [2.0] * 4
    assert scores(build_reward_set([fails, fine], weights=[0.5, 1.0])) == [None, 2.5, 2.25, 2.0 + 1 / 6]


def test_too_many_earlier_failures_stop_on_a_batch_with_one_more(build: Build) -> None:
    """And a clean batch is no reason to stop, nor an IndexError."""
    texts = iter([16, 16, 16])

    def some(prompt: Prompt, completion: Completion) -> float:
        return 1.0 / (int(completion.text) % 4) if next(rounds) < 16 else 1.0

    rounds = iter(range(1000))
    rewards = build_reward_set([some])
    assert scores(rewards, next(texts)).count(None) == 4
    assert scores(rewards, next(texts)) == [1.0] * 16
    assert scores(rewards, next(texts)) == [1.0] * 16


def test_a_function_that_fails_on_every_batch_stops(build: Build) -> None:
    """Row by row a mean over the batch is something else."""

    def centred(completions: list[str], **columns: Any) -> list[float]:
        values = [float(text) for text in completions]
        if len(values) > 1:
            raise MemoryError("batch too large")
        return [value - sum(values) / len(values) for value in values]

    rewards = build(centred)
    for _ in range(2):
        assert scores(rewards) == [0.0] * 4
    with pytest.raises(RewardError, match=r"(?s)raised on 3 batches in a row.*batch too large"):
        scores(rewards)


def test_a_judge_that_is_down_is_given_up(build: Build) -> None:
    def down(prompt: Prompt, completion: Completion) -> float:
        time.sleep(60)
        return 1.0

    began = time.monotonic()
    with pytest.raises(RewardError, match="failed on 200 of 200"):
        scores(build(down, timeout_s=0.1), 200)
    assert time.monotonic() - began < 15  # 32 calls, not 200


def test_a_column_that_can_not_be_sent_is_named(build: Build) -> None:
    import threading

    prompts, completions = rows(2)
    odd = [Prompt(p.id, p.messages, {"lock": threading.Lock()}) for p in prompts]
    with pytest.raises(RewardError, match=r"'hangs_on_one': the column 'lock' holds a lock"):
        build(hangs_on_one).score(odd, completions)


def test_a_client_of_an_async_reward_keeps_its_loop(build: Build) -> None:
    import asyncio

    class Client:
        loop: Any = None

        async def __call__(self, completions: list[str], **columns: Any) -> list[float]:
            self.loop = self.loop or asyncio.get_running_loop()
            return [float(self.loop is asyncio.get_running_loop())] * len(completions)

    for rewards in (build(Client, workers=1), build_reward_set([Client])):
        assert scores(rewards) == [1.0] * 4 == scores(rewards)


def test_pools_that_are_forgotten_do_not_harm_the_next(build: Build) -> None:
    for _ in range(3):
        rewards = build_reward_set([hangs_on_one], limits=RewardLimits(workers=2))
        assert rewards.score(rows()[0][2:], rows()[1][2:]).scored[0].total == 2.0
        del rewards
        gc.collect()
    assert build(hangs_on_one).score(rows()[0][2:], rows()[1][2:]).scored[1].total == 3.0


def test_a_killed_forking_process_is_an_error_that_says_so(build: Build) -> None:
    rewards = build(hangs_on_one)
    assert rewards._pool is not None
    os.kill(rewards._pool._pid, signal.SIGKILL)
    with pytest.raises(RewardError, match="no process can be started"):
        scores(rewards)


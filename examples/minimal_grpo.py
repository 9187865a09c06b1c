"""GRPO (arXiv 2402.03300) in one file: the whole algorithm, nothing hidden behind a library but the network itself.

    python examples/minimal_grpo.py --tiny                         # a random toy model learns a toy game in seconds
    python examples/minimal_grpo.py --model path/to/a/warm_start   # a real model plays Countdown

The game, Countdown: "24 from 2, 8, 5" asks for an expression that uses every number once and is 24, written as
<think>...</think><answer>8*(5-2)</answer>. `grpo_step` is the algorithm; what stands before it is what it needs. It is
the readable twin of Covey's own step (src/covey/trainers/grpo.py), which does the same in less time and memory.
The article that Covey follows sketches GRPO with four slips: SLIP 1 to SLIP 4 mark where they would matter.
"""

from __future__ import annotations

import argparse
import ast
import copy
import operator
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM

FORMAT_WEIGHT, ACCURACY_WEIGHT = 0.4, 0.6  # the article's; too much for format alone can teach a model to stop thinking
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
SHAPE = re.compile(r"<think>.*</think>\s*<answer>(.*\S.*)</answer>", re.DOTALL)
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Puzzle(NamedTuple):
    nums: tuple[int, ...]
    target: int


def make_puzzle(rng: random.Random, count: int) -> Puzzle:
    """`count` numbers, and a target that is found by walking to it, so that every puzzle has a solution."""
    while True:
        nums = [rng.randint(1, 12 if count > 1 else 9) for _ in range(count)]
        value = nums[0]
        for n in nums[1:]:
            value = rng.choice([value + n, value - n, value * n] + ([value // n] if value % n == 0 else []))
        if count == 1 or 13 <= value <= 99:
            return Puzzle(tuple(rng.sample(nums, count)), value)


def evaluate(node: Any) -> Fraction:
    """Exact value of a parsed expression: Python parses what a model wrote, but never runs it. In fractions, because
    with floats and a tolerance some wrong answers pass."""
    if isinstance(node, ast.Constant):
        return Fraction(cast(int, node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return Fraction(OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right)))
    raise ValueError("something else than + - * /")


def score(text: str, puzzle: Puzzle) -> tuple[float, float]:
    """(format, accuracy), each 0 or 1, of a whole answer."""
    shape = SHAPE.fullmatch(text.strip())
    if shape is None or any(text.count(tag) != 1 for tag in TAGS):
        # SLIP 1: the article pays 0.4 "for format only" when there is no <answer> at all. Then saying nothing is worth
        # as much as a well-formed try. No tags, no format reward.
        return 0.0, 0.0
    if re.fullmatch(r"[0-9+*/() -]{1,100}", answer := shape[1].strip()) is None:
        return 1.0, 0.0
    try:
        value = evaluate(ast.parse(answer, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):  # no expression; any other error is a bug and stops the run
        return 1.0, 0.0
    used = sorted(map(int, re.findall("[0-9]+", answer)))
    return 1.0, float(value == puzzle.target and used == sorted(puzzle.nums))


class Player(NamedTuple):  # a policy, and its way from puzzles to token ids and back
    policy: Any
    encode: Callable[[Puzzle], list[int]]
    decode: Callable[[list[int]], str]
    end_ids: list[int]
    opening: str = ""  # the part of the answer that the prompt has already written
    numbers_per_puzzle: int = 3


def real_player(folder: str) -> Player:
    """A Hugging Face model. RL strengthens what is sampled now and then; a raw small model never samples a right
    answer, so all its groups are equal and nothing moves. Give one that plays a little already (a warm start)."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    configured = policy.generation_config.eos_token_id  # a model may have several end tokens
    ends = {*(configured if isinstance(configured, list) else [configured]), tokenizer.eos_token_id} - {None}

    def encode(puzzle: Puzzle) -> list[int]:
        user = f"{puzzle.target} from {', '.join(map(str, puzzle.nums))}"
        turns = [{"role": "system", "content": "You solve number puzzles."}, {"role": "user", "content": user}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])  # the template has spelled them already

    return Player(policy, encode, tokenizer.decode, sorted(ends))


def toy_player() -> Player:
    """A random two-layer Llama and Countdown with one number: "7 from 7" wants "7". It has to find out from reward
    alone that </answer> closes an answer (format) and which digit belongs in it (accuracy)."""
    words = ["<end>", "</answer>", " from ", "<think></think><answer>", *"0123456789"]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    policy = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=16, **sizes))

    def encode(puzzle: Puzzle) -> list[int]:
        return [words.index(w) for w in (str(puzzle.target), " from ", str(puzzle.nums[0]), words[3])]

    return Player(policy, encode, lambda ids: "".join(words[i] for i in ids), [0], words[3], numbers_per_puzzle=1)


def logits_of(policy: Any, ids: Tensor, attention: Tensor, keep: int, cache: Any = None) -> Tensor:
    """Logits [R, keep, V] at the last `keep` places. Positions count from a row's first real token, so that padding
    shifts nothing; with a cache, `ids` are only the tokens it does not hold yet."""
    places = (attention.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    inputs = {"input_ids": ids, "attention_mask": attention, "position_ids": places, "past_key_values": cache}
    return cast(Tensor, policy(**inputs, use_cache=cache is not None, logits_to_keep=keep).logits.float())


@torch.no_grad()
def sample(player: Player, prompts: Sequence[list[int]], args: Any) -> tuple[Tensor, Tensor, int]:
    """One completion per prompt: ids [R, P + C], attention [R, P + C] (0 on padding), and P. Prompts are padded on the
    left, so that all completions start in column P. After the prompts, each pass reads one token per row."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    running, unread, cache = torch.ones(len(prompts), dtype=torch.bool), ids, DynamicCache()
    while ids.shape[1] < width + args.max_completion_length and running.any():
        logits = logits_of(player.policy, unread, attention, 1, cache)[:, 0]
        # The plain softmax: top-k or top-p would sample from another distribution than the one that is trained.
        unread = torch.multinomial(torch.softmax(logits / args.temperature, -1), 1)
        ids = torch.cat([ids, unread], 1)
        attention = torch.cat([attention, running[:, None].long()], 1)  # what a finished row still "says" is padding
        running &= ~torch.isin(unread[:, 0], torch.tensor(player.end_ids))
    return ids, attention, width


def logprobs(policy: Any, ids: Tensor, attention: Tensor, width: int, temperature: float) -> Tensor:
    """log pi(token | everything before it) of every completion token, [R, C]: the logits before a token predict it."""
    logits = logits_of(policy, ids, attention, ids.shape[1] - width + 1)[:, :-1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[:, width:, None]).squeeze(-1)


def group_advantages(rewards: Tensor) -> Tensor:
    """How much better a completion is than the others of its prompt: rewards [prompts, G] -> advantages [prompts, G].
    The group's mean is the baseline; PPO trains a second network, the critic, to have one."""
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    # SLIP 2: the article divides by the std alone, which is 0/0 when all rewards of a group are equal, or by rounding
    # noise/noise, which is worse. Such a group does not say what is better: exactly 0.
    equal = rewards.amax(1, keepdim=True) - rewards.amin(1, keepdim=True) <= 1e-6
    return advantages.masked_fill(equal, 0.0)


def kl_to_reference(logp: Tensor, ref: Tensor) -> Tensor:
    """k3: an estimate of KL(policy || reference) per token that is never negative, and 0 where the two agree."""
    return torch.exp(ref - logp) - (ref - logp) - 1


def token_loss(logp: Tensor, old: Tensor | None, ref: Tensor | None, advantages: Tensor, args: Any) -> Tensor:
    """Loss of every token [R, C], to be minimised; advantages [R, 1]."""
    # SLIP 3: the article divides by the *reference* model. The ratio corrects for having sampled from older weights, so
    # below the line is the policy that sampled. In the first update on a rollout that is the policy itself: the ratio
    # is 1, but its gradient is not 0; it is that of log pi, the plain policy gradient.
    ratio = torch.exp(logp - (logp.detach() if old is None else old))
    # min: nothing is gained by moving a ratio beyond the clip range, but all of it is charged
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - args.epsilon, 1 + args.epsilon) * advantages)
    # SLIP 4: the article returns objective - beta * KL as the loss. An optimizer minimises: that would train towards
    # the bad completions and away from the reference. The loss is the negative of what we want.
    return -objective if ref is None else -(objective - args.beta * kl_to_reference(logp, ref))


def grpo_step(player: Player, reference: Any, optimizer: Any, puzzles: list[Puzzle], args: Any) -> dict[str, float]:
    """Sample G completions of every puzzle, compare each with its group, make the better ones more likely."""
    size, policy = args.num_generations, player.policy
    owners = [puzzle for puzzle in puzzles for _ in range(size)]
    ids, attention, width = sample(player, [player.encode(p) for p in owners], args)
    trained = attention[:, width:].float()  # [R, C]: all sampled tokens; with the end token, stopping is learned too
    rows = [row[kept].tolist() for row, kept in zip(ids[:, width:], trained.bool(), strict=True)]
    texts = [player.opening + player.decode([t for t in row if t not in player.end_ids]) for row in rows]
    scores = torch.tensor([score(text, puzzle) for text, puzzle in zip(texts, owners, strict=True)])
    rewards = (scores @ torch.tensor([FORMAT_WEIGHT, ACCURACY_WEIGHT])).view(-1, size)
    advantages = group_advantages(rewards).view(-1, 1)  # every token of a completion has the completion's advantage
    # The mean over all tokens of the step as one weight per token, fixed over the *whole* batch before any forward
    # pass. With a mean inside each micro-batch the result would depend on how the batch happens to be cut.
    weights = trained / trained.sum()
    parts = [slice(i, i + args.rows_per_micro_batch) for i in range(0, len(owners), args.rows_per_micro_batch)]

    @torch.no_grad()
    def frozen(model: Any) -> Tensor:
        return torch.cat([logprobs(model, ids[p], attention[p], width, args.temperature) for p in parts])

    # Both are taken before the first update. With one update per rollout, old and new policy are the same: no pass.
    old = frozen(policy) if args.num_iterations > 1 else None
    ref = None if reference is None else frozen(reference)
    for _ in range(args.num_iterations):
        kl = 0.0
        for p in parts:  # gradients add up over micro-batches and nothing is divided: the weights have done that
            logp = logprobs(policy, ids[p], attention[p], width, args.temperature)
            old_p, ref_p = (None if x is None else x[p] for x in (old, ref))
            torch.autograd.backward((weights[p] * token_loss(logp, old_p, ref_p, advantages[p], args)).sum())
            kl += 0.0 if ref_p is None else float((weights[p] * kl_to_reference(logp.detach(), ref_p)).sum())
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        if 0 < norm < float("inf"):  # no signal, no step: AdamW would still move the weights, by its momentum
            optimizer.step()
        optimizer.zero_grad()
    metrics = {"reward": rewards.mean(), "format": scores[:, 0].mean(), "accuracy": scores[:, 1].mean()}
    metrics |= {"equal groups": (advantages.view(-1, size) == 0).all(1).float().mean(), "length": trained.sum(1).mean()}
    return {name: value.item() for name, value in metrics.items()} | {"kl": kl}


def main(argv: Sequence[str]) -> list[dict[str, float]]:
    """Train and return the metrics of every step."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", help="Hugging Face folder; default: what `covey models fetch smollm2-135m` prints")
    parser.add_argument("--tiny", action="store_true", help="the toy player, with defaults of its own")
    for name, default in (TINY if "--tiny" in argv else DEFAULTS).items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=" ")
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    if not (args.tiny or args.model):
        args.model = subprocess.check_output(["covey", "models", "fetch", "smollm2-135m"], text=True).split("\n")[-2]
    player = toy_player() if args.tiny else real_player(args.model)
    player.policy.eval()  # no dropout: sampled and recomputed log-probabilities must come from one function
    reference = copy.deepcopy(player.policy).requires_grad_(False) if args.beta > 0 else None
    optimizer = torch.optim.AdamW(player.policy.parameters(), args.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    history = []
    for step in range(args.steps):
        puzzles = [make_puzzle(rng, player.numbers_per_puzzle) for _ in range(args.prompts_per_step)]
        history.append(grpo_step(player, reference, optimizer, puzzles, args))
        print(f"step {step + 1:3} ", *(f"{name} {value:.3f} " for name, value in history[-1].items()), flush=True)
    return history


DEFAULTS: dict[str, float] = {
    "steps": 60, "prompts_per_step": 8, "num_generations": 8, "num_iterations": 1,  # rollouts, groups, G, updates
    "max_completion_length": 160, "temperature": 1.0, "rows_per_micro_batch": 8,  # the rows limit memory, nothing else
    "learning_rate": 1e-5, "epsilon": 0.2, "beta": 0.0, "seed": 0,  # epsilon: clip range; beta: KL weight, 0 for none
}  # fmt: skip
TINY = DEFAULTS | {"steps": 80, "prompts_per_step": 10, "num_generations": 16, "num_iterations": 2}
TINY |= {"max_completion_length": 2, "rows_per_micro_batch": 160, "learning_rate": 2e-3}

if __name__ == "__main__":
    main(sys.argv[1:])

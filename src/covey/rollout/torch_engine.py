"""The embedded rollout engine: batched decoding in this process, on the model the trainer updates or on a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from covey.models.base import DecodeState, PolicyModel
from covey.models.logprob import with_chosen_logit
from covey.rollout.base import Progress, Sampling
from covey.rollout.sampler import draw, row_uniforms
from covey.types import Completion, Prompt

Decode = Callable[[Sequence[int]], str]


class TorchEngine:
    """Implements RolloutEngine. One prefill per prompt; finished rows leave the batch.

    ``decode`` turns ids (without the end token) into text; ``end_ids`` are all end tokens of the model; at most
    ``max_rows`` completions and ``max_tokens`` places in the cache are in use together, which bounds the memory.
    """

    def __init__(
        self,
        model: PolicyModel,
        decode: Decode,
        end_ids: Sequence[int],
        *,
        max_rows: int = 256,
        max_tokens: int = 131_072,
    ) -> None:
        self._model, self._decode = model, decode
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._end_ids = torch.tensor(sorted(end_ids), dtype=torch.int64)
        self._version = 0

    @property
    def weight_version(self) -> int:
        return self._version

    @torch.no_grad()
    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy the weights, or only note the version where engine and trainer hold the same tensors.

        ValueError when a name is missing, unknown or twice or a shape differs; some weights may then be new already,
        so the version stays what it was and the run must stop.
        """
        mine = dict(self._model.hf_state())
        for name, tensor in named:
            if name not in mine:
                raise ValueError(f"weight {name!r} is unknown to the engine or was sent twice")
            target = mine.pop(name)
            if target.shape != tensor.shape:  # copy_ would broadcast
                raise ValueError(
                    f"weight {name!r} has shape {list(tensor.shape)}, the engine holds {list(target.shape)}"
                )
            if target.data_ptr() != tensor.data_ptr():
                target.copy_(tensor)
        if mine:
            raise ValueError(f"{len(mine)} weights were not sent, e.g. {sorted(mine)[:3]}")
        self._version = version

    def generate(
        self,
        prompts: Sequence[Prompt],
        samples_per_prompt: int,
        sampling: Sampling,
        *,
        seed: tuple[int, ...],
        progress: Progress | None = None,
    ) -> list[list[Completion]]:
        if empty := [prompt.id for prompt in prompts if not prompt.token_ids]:
            raise ValueError(f"{len(empty)} prompts have no token ids, e.g. {empty[0]}: tokenize them first")
        uniforms = row_uniforms(prompts, samples_per_prompt, sampling.max_new_tokens, seed)
        owners = [prompt for prompt in prompts for _ in range(samples_per_prompt)]
        rows: list[Completion] = []
        longest = max((len(prompt.token_ids) for prompt in prompts), default=0) + sampling.max_new_tokens
        wave = max(1, min(self._max_rows, self._max_tokens // longest))
        for start in range(0, len(owners), wave):
            part = slice(start, start + wave)

            def report(finished: int, before: int = start) -> None:
                if progress is not None:
                    progress(before + finished, len(owners))

            rows += self._decode_rows(owners[part], uniforms[part], sampling, report)
        return [rows[k * samples_per_prompt : (k + 1) * samples_per_prompt] for k in range(len(prompts))]

    @torch.no_grad()
    def _decode_rows(
        self, owners: Sequence[Prompt], uniforms: Tensor, sampling: Sampling, report: Callable[[int], None]
    ) -> list[Completion]:
        """Complete every row; ``owners`` holds the prompt of each row, equal ones side by side."""
        distinct: list[Prompt] = []
        counts: list[int] = []
        for owner in owners:
            if distinct and distinct[-1] is owner:
                counts[-1] += 1
            else:
                distinct.append(owner)
                counts.append(1)
        logits, state = self._model.prefill([p.token_ids for p in distinct], counts, sampling.max_new_tokens)
        device = logits.device
        uniforms, end_ids = uniforms.to(device), self._end_ids.to(device)
        total = len(owners)
        ids = torch.zeros(total, sampling.max_new_tokens, dtype=torch.int64, device=device)
        logprobs = torch.zeros(total, sampling.max_new_tokens, device=device)
        lens = torch.zeros(total, dtype=torch.int64, device=device)
        live = torch.arange(total, device=device)  # row number of each row still in the decoding batch
        running = torch.ones(total, dtype=torch.bool, device=device)
        for position in range(sampling.max_new_tokens):
            tokens, token_logprobs = draw(logits, uniforms[live, position], sampling)
            token_logprobs = self._exact(token_logprobs, logits, state, tokens, sampling.temperature or 1.0)
            written = live[running]
            ids[written, position] = tokens[running]
            logprobs[written, position] = token_logprobs[running]
            lens[written] += 1
            running = running & ~torch.isin(tokens, end_ids)
            report(total - int(running.sum()))
            if position + 1 == sampling.max_new_tokens or not bool(running.any()):
                break
            # moving the caches costs about as much as a few wasted rows, so rows leave in bunches
            if int(running.sum()) <= 0.9 * len(live):
                kept = running.nonzero().squeeze(1)
                state.keep(kept)
                live, tokens, running = live[kept], tokens[kept], running[kept]
            logits = state.step(tokens)
        if not bool(torch.isfinite(logprobs).all()):
            raise RuntimeError(f"the model gives logits that are not finite (weight version {self._version})")
        return self._completions(ids.cpu(), logprobs.cpu(), lens.tolist(), sampling.temperature or 1.0)

    @staticmethod
    def _exact(logprobs: Tensor, logits: Tensor, state: DecodeState, tokens: Tensor, temperature: float) -> Tensor:
        rounded = logits.gather(1, tokens[:, None]).squeeze(1)
        return with_chosen_logit(logprobs, rounded / temperature, state.chosen_logits(tokens) / temperature)

    def _completions(
        self, ids: Tensor, logprobs: Tensor, lens: Sequence[int], temperature: float
    ) -> list[Completion]:
        ends = set(self._end_ids.tolist())
        rows = []
        for row, length in enumerate(lens):
            tokens = tuple(ids[row, :length].tolist())
            stopped = tokens[-1] in ends
            rows.append(
                Completion(
                    token_ids=tokens,
                    logprobs=tuple(logprobs[row, :length].tolist()),
                    text=self._decode(tokens[:-1] if stopped else tokens),
                    finish_reason="stop" if stopped else "length",
                    weight_version=self._version,
                    temperature=temperature,
                )
            )
        return rows

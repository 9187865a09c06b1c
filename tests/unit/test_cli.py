"""The command line: what it accepts, what it refuses (exit code 2, one message), and what it prints."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.cli.model_names import resolve_model
from covey.cli.notes import default_differences, resolved_config
from covey.cli.parse import Parsed, parse
from covey.config import EvalRunConfig, GRPOConfig, RecipeConfig, SampleConfig
from covey.errors import UserError

SRC = str(Path(__file__).parents[2] / "src")
BASE = shlex.split("--rlhf_type grpo --model owner/name --dataset countdown --reward_funcs format accuracy")
ARTICLE = shlex.split(
    "--rlhf_type grpo --model Qwen2.5-3B-Instruct --dataset countdown --reward_funcs format accuracy"
    " --num_generations 8 --per_device_train_batch_size 8 --learning_rate 5e-7 --beta 0.001"
    " --max_completion_length 1024"
)


def rlhf(*words: str) -> GRPOConfig:
    config = parse("rlhf", [*BASE, *words]).config
    assert isinstance(config, GRPOConfig)
    return config


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The message of a refused command line; checks the exit code, the one message and the missing traceback."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("covey: error: ")
    assert "Traceback" not in err
    return err.removeprefix("covey: error: ").strip()


def yaml_file(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# --- what is accepted


def test_the_article_command() -> None:
    parsed = parse("rlhf", ARTICLE)
    config = parsed.config
    assert isinstance(config, GRPOConfig)
    assert config.model.model == "Qwen/Qwen2.5-3B-Instruct"
    assert config.reward.reward_funcs == ("format", "accuracy")
    assert config.reward.weights() == {"format": 0.4, "accuracy": 0.6}
    assert config.optim.learning_rate == 5e-7
    assert config.algo.beta == 0.001
    assert (config.rollout.num_generations, config.sampling.max_completion_length) == (8, 1024)
    assert any("taken as Qwen/Qwen2.5-3B-Instruct" in note for note in parsed.notes)


def test_forms_of_values() -> None:
    assert rlhf("--top_k", "-1").sampling.top_k == -1
    assert rlhf("--top_k=5").sampling.top_k == 5
    assert rlhf("--overlong_filter").algo.overlong_filter is True
    assert rlhf("--overlong_filter", "True").algo.overlong_filter is True
    assert rlhf("--overlong_filter", "false").algo.overlong_filter is False
    assert rlhf("--reward_weights", "0.1", "-0.9").reward.reward_weights == (0.1, -0.9)
    assert rlhf("--countdown_num_numbers", "3", "4").countdown.num_numbers == (3, 4)
    assert rlhf("--report_to", "tensorboard", "wandb").run.report_to == ("tensorboard", "wandb")
    assert rlhf("--system=--be brief").data.system == "--be brief"
    assert rlhf("--system", "").data.system == ""


def test_other_spellings() -> None:
    config = parse(
        "rlhf", shlex.split("--rlhf_type grpo --model_name_or_path a/b --dataset_name c/d --reward_funcs x")
    ).config
    assert isinstance(config, GRPOConfig)
    assert (config.model.model, config.data.dataset) == ("a/b", "c/d")
    assert rlhf("--mask_truncated_completions", "true").algo.overlong_filter is True


def test_fixed_flags_are_accepted_with_a_note() -> None:
    parsed = parse("rlhf", [*BASE, "--tuner_type", "full", "--use_vllm", "False", "--log_completions"])
    assert [note.split(":")[0] for note in parsed.notes] == [
        "--tuner_type full",
        "--use_vllm False",
        "--log_completions true",
    ]


def test_system_message_from_a_text_file(tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text("Think first.", encoding="utf-8")
    assert rlhf("--system", str(file)).data.system == "Think first."
    with pytest.raises(UserError, match=r"--system .*none\.txt: cannot be read"):
        rlhf("--system", str(tmp_path / "none.txt"))


def test_other_commands() -> None:
    evaluation = parse("eval", shlex.split("--model a/b --dataset countdown --json --temperature 0")).config
    assert isinstance(evaluation, EvalRunConfig)
    assert evaluation.eval.json is True
    assert evaluation.reward.reward_funcs == ("format", "accuracy")
    sample = parse("sample", ["--model", "a/b", "--prompt", "24 from 4, 6", "5 from 2, 3", "--num_samples", "2"]).config
    assert isinstance(sample, SampleConfig)
    assert sample.sample.prompt == ("24 from 4, 6", "5 from 2, 3")
    recipe = parse("recipe", ["--seed", "3"]).config
    assert isinstance(recipe, RecipeConfig)
    assert (recipe.recipe.seed, recipe.recipe.output_dir) == (3, None)


# --- config file


def test_command_line_beats_the_file_and_the_resolved_config_shows_it(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "learning_rate: 1e-6\nbeta: 0.01\nmax_steps: 7\nreport_to: [wandb]\ntuner_type: full\n")
    parsed = parse("rlhf", [*BASE, "--config", path, "--beta", "0.002"])
    assert isinstance(parsed.config, GRPOConfig)
    assert parsed.config.algo.beta == 0.002
    assert parsed.config.optim.learning_rate == 1e-6  # YAML 1.1 reads 1e-6 as text
    assert parsed.config.run.max_steps == 7
    assert parsed.config.to_dict()["beta"] == 0.002
    assert "beta: 0.002" in resolved_config(parsed.config)
    assert "--beta 0.002 (the command line beats the config file: 0.01)" in parsed.notes


def test_everything_can_stand_in_the_file(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "rlhf_type: grpo\nmodel: a/b\ndataset: countdown\nreward_funcs: [format, accuracy]\n")
    assert isinstance(parse("rlhf", ["--config", path]).config, GRPOConfig)


def test_a_resolved_config_is_a_config_file(tmp_path: Path) -> None:
    first = rlhf("--max_steps", "7", "--learning_rate", "3e-6", "--report_to", "wandb")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"rlhf_type": "grpo", **first.to_dict()}), encoding="utf-8")
    assert parse("rlhf", ["--config", str(path)]).config == first


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("max_stepz: 5", ["--max_stepz", "did you mean --max_steps"]),
        ('learning_rate: "1e-6x"', ["--learning_rate", "1e-6x"]),
        ("beta: 0.1\nbeta: 0.2", ["beta is given twice", "line 2"]),
        ("model: [", ["not valid YAML", "line"]),
        ("- beta", ["flag: value", "list"]),
        ("algo:\n  beta: 0.1", ["algo holds a mapping", "flat"]),
        ("5: 6", ["the key 5"]),
        ("tuner_type: lora", ["--tuner_type lora", "LoRA"]),
        ("max_steps: 5.5", ["--max_steps", "a whole number"]),
        ("model_name_or_path: a\nmodel: b", ["given twice"]),
    ],
)
def test_bad_config_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, parts: list[str]) -> None:
    path = yaml_file(tmp_path, text)
    message = refusal(capsys, "rlhf", *BASE, "--config", path)
    assert message.startswith(f"--config {path}: ")
    assert all(part in message for part in parts), message


def test_missing_config_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "No such file" in refusal(capsys, "rlhf", *BASE, "--config", str(tmp_path / "none.yaml"))


# --- what is refused


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--max_stepz 5", ["unknown flag --max_stepz", "did you mean --max_steps?", "covey rlhf --help"]),
        ("--max_step 5", ["unknown flag --max_step"]),  # no abbreviations
        ("--qqqqqq 5", ["unknown flag --qqqqqq", "covey rlhf --help"]),
        ("--beta", ["--beta: expected one value (a number), got 0"]),
        ("--beta 0.1 0.2", ["--beta: expected one value (a number), got 2: 0.1 0.2"]),
        ("--beta x", ["--beta: expected a number, got 'x'"]),
        ("--beta 0.1 --beta 0.2", ["--beta is given twice"]),
        ("--reward_weights", ["--reward_weights: expected at least one value"]),
        ("--overlong_filter maybe", ["--overlong_filter: expected true or false"]),
        (
            "--loss_type gsppo",
            ["must be one of grpo, dapo, ppo, dr_grpo", "did you mean gspo?"],
        ),
        ("--prompt hello", ["--prompt is not read by covey rlhf", "covey sample"]),
        ("--kl_estimator k3", ["--kl_estimator is read only with --beta above 0"]),  # even at its default
        ("--max_steps 5 --num_train_epochs 1", ["--num_train_epochs is not read when --max_steps"]),
        ("--num_generations 1", ["needs at least 2"]),
        ("--use_vllm true", ["vLLM rollouts come with Part 6", "accepted: false"]),
        ("--vllm_mode colocate", ["vLLM rollouts come with Part 6"]),
        ("--deepspeed zero3", ["--deepspeed zero3", "Part 7"]),
        ("--tuner_type lora", ["LoRA comes with Part 6"]),
        ("--loss_type cispo", ["--epsilon_high is not set", "ScaleRL uses 5", "--loss_type cispo"]),
        ("--loss_type cispo --epsilon_high 0.28", ["absolute cap", "1.28 here"]),
        ("--loss_type dr_grpo --scale_rewards group", ["dr_grpo is defined with --scale_rewards none"]),
        ("--kl_estimator k1 --beta 0.1", ["gradient is zero on average", "--kl_in_reward true"]),
        ("--kl_estimator k3 --beta 0.1 --kl_in_reward true", ["in the reward only k1"]),
        ("--kl_in_reward true", ["--kl_in_reward is read only with --beta above 0"]),
        ("--num_generations 1", ["needs at least 2"]),
        ("--tau_pos 1.0", ["--tau_pos is read only with --loss_type sapo"]),
        ("--loss_type sapo --epsilon 0.2", ["--epsilon is read only with --loss_type grpo, dapo"]),
        ("--advantage_estimator maxrl --scale_rewards group", ["has a divisor of its own"]),
        ("--preset gsop", ["--preset gsop is not known", "did you mean gspo?"]),
        ("--contrastive_coef 0.1 --per_device_train_batch_size 12 --num_generations 8", ["whole groups"]),
        ("--loss_type dr_grpo --advantage_estimator maxrl", ["without a divisor", "they don't go together"]),
        ("--advantage_estimator reinforce_plus_plus --scale_rewards group", ["no group baseline", "use batch or none"]),
        ("--loss_type gspo --importance_sampling_level token", ["is defined by one ratio per sequence", "it is grpo"]),
        ("--loss_type gmpo --advantage_estimator reinforce_plus_plus --beta 0.1", ["advantage of its own"]),
        ("--soft_cache_length 100", ["is read only with --reward_funcs ... soft_overlong"]),
        ("--truncation_strategy left", ["must be one of raise, delete"]),
    ],
)
def test_refused_flags(capsys: pytest.CaptureFixture[str], words: str, parts: list[str]) -> None:
    message = refusal(capsys, "rlhf", *BASE, *words.split())
    assert all(part in message for part in parts), message


PPO = "rlhf --rlhf_type ppo --model a/b --dataset countdown --reward_funcs format accuracy "


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("rlhf --model a/b", ["--rlhf_type grpo"]),
        ("rlhf --rlhf_type ppo", ["covey rlhf --rlhf_type ppo needs --model, --dataset, --reward_funcs"]),
        (PPO + "--loss_type gmpo", ["advantage of its own", "sequence_token"]),
        (PPO + "--off_policy_sequence_mask_delta 0.5", ["by the sign of their advantage"]),
        (PPO + "diversity", ["--num_generations must be 2 or more"]),
        (PPO + "soft_overlong", ["needs --soft_cache_length"]),
        (
            PPO + "soft_overlong --soft_max_length 1000 --soft_cache_length 100",
            ["starts after 900 tokens", "--max_completion_length 512"],
        ),
        (PPO + "--lam 0.9 --lam_value 1 --length_adaptive_alpha 0.05", ["is not read with both"]),
        ("rlhf --rlhf_type kto", ["kto is not in this version", "has grpo, ppo, dpo, rm"]),
        ("rlhf --rlhf_type dpo --num_generations 8", ["--num_generations is not read by covey rlhf --rlhf_type dpo"]),
        ("rlhf --rlhf_type ppo --preset dapo", ["presets are the objectives of GRPO's family"]),
        ("rlhf --rlhf_type grop", ["grop is not known", "this version has grpo, ppo, dpo, rm"]),
        ("rlhf --rlhf_type grpo", ["needs --model, --dataset, --reward_funcs", "add --dataset countdown"]),
        ("rlhf oops", ["unexpected word 'oops'"]),
        ("sft --model a/b", ["covey sft needs --dataset"]),
        ("sft --model a/b --dataset countdown --beta 0.1", ["--beta is not read by covey sft", "covey rlhf"]),
        ("eval --dataset countdown", ["covey eval needs --model"]),
        ("sample --model a/b", ["covey sample needs --prompt"]),
        ("chat", ["covey chat needs --model"]),
        ("score --task countdown", ["covey score needs --file"]),
        ("recipe", ["covey recipe needs a file"]),
        ("recipe x.yaml --sead 3", ["did you mean --seed?"]),
        ("models", ["covey models fetch NAME"]),
        ("megatron rlhf", ["Part 7"]),
        ("evla", ["unknown command 'evla'", "did you mean covey eval?"]),
        ("rlhf --rlhf_type grpo --model nosuch --dataset countdown --reward_funcs x", ["--model nosuch", "owner/name"]),
        ("chat --model ./nosuch", ["--model ./nosuch: there is no such folder"]),
    ],
)
def test_refused_lines(capsys: pytest.CaptureFixture[str], line: str, parts: list[str]) -> None:
    message = refusal(capsys, *line.split())
    assert all(part in message for part in parts), message


# --- model names


def test_model_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model("smollm2-135m") == ("smollm2-135m", None)
    assert resolve_model("any/thing") == ("any/thing", None)
    assert resolve_model("SmolLM2-360M-Instruct")[0] == "HuggingFaceTB/SmolLM2-360M-Instruct"
    assert resolve_model("Llama-3.2-1B")[0] == "meta-llama/Llama-3.2-1B"
    assert resolve_model("gpt-oss-20b")[0] == "openai/gpt-oss-20b"
    with pytest.raises(UserError, match=r"write smollm2-135m .* or HuggingFaceTB/SmolLM2-135M"):
        resolve_model("SmolLM2-135M")


def test_an_existing_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen2.5-3B-Instruct").mkdir()
    name, note = resolve_model("Qwen2.5-3B-Instruct")
    assert name == "Qwen2.5-3B-Instruct"
    assert note is not None and "local folder" in note


# --- what is printed


def differences(parsed: Parsed) -> str:
    return "\n".join(default_differences(parsed.config, parsed.given))


def test_defaults_that_differ_from_ms_swift_are_listed_unless_given() -> None:
    text = differences(parse("rlhf", BASE))
    assert "--beta 0 (ms-swift 0.04)" in text
    assert "--temperature 1 (ms-swift 0.9)" in text
    assert "--reward_weights 0.4 0.6 (ms-swift 1 each)" in text
    assert "--num_generations" not in text  # 8 in both
    assert "--beta" not in differences(parse("rlhf", [*BASE, "--beta", "0.001"]))
    assert "--num_train_epochs" in text
    assert "--num_train_epochs" not in differences(parse("rlhf", [*BASE, "--max_steps", "5"]))  # not read then
    assert differences(parse("chat", ["--model", "a/b"])) == ""


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "covey COMMAND" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "covey 0.1.0\n"
    for command in ("rlhf", "sft", "eval", "chat", "sample", "score", "recipe", "models"):
        assert main([command, "--help"]) == 0
        assert f"covey {command}" in capsys.readouterr().out
    assert main(["rlhf", "--learning_rate", "x", "-h"]) == 0
    assert "[default 1e-06, ms-swift 1e-05]" in capsys.readouterr().out


def test_models_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert "smollm2-135m" in capsys.readouterr().out


def test_score_prints_a_json_line_per_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    good = {"completion": "<think>4*6</think><answer>4*6</answer>", "nums": [4, 6], "target": 24}
    bad = {"completion": "<answer>4+6</answer>", "numbers": [4, 6], "target": 24}
    file.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n", encoding="utf-8")
    assert main(["score", "--task", "countdown", "--file", str(file)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["format"], row["accuracy"]) for row in rows] == [(1, 1), (0, 0)]


def test_score_of_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "none.jsonl" in refusal(capsys, "score", "--file", str(tmp_path / "none.jsonl"))


def test_help_and_parsing_need_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        f"sys.path.insert(0, {SRC!r})\n"
        "from covey.cli.main import main\n"
        "from covey.cli.parse import parse\n"
        "assert main(['--help']) == 0 and main(['rlhf', '--help']) == 0\n"
        f"parse('rlhf', {BASE!r})\n"
        "loaded = {'torch', 'transformers', 'numpy', 'rich', 'datasets'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr

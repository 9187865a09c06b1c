"""THE flag table: every flag Covey knows, in ms-swift's spelling.

Three kinds. *Mapped* flags (``FLAGS``) are config options of the same name; which commands read one, its type and its
default follow from the config classes. *Fixed* flags (``FIXED``) are ms-swift flags for which this version does one
thing only: the value that asks for that is accepted with a printed note, every other value is refused with the reason.
*Other* spellings (``ALIASES``) stand for a mapped flag.
"""

from __future__ import annotations

from dataclasses import dataclass

from covey.config import (
    LOSS_OPTION_HELP,
    REWARD_OPTION_HELP,
    BenchConfig,
    ChatConfig,
    CheckRewardConfig,
    DPOConfig,
    EvalRunConfig,
    GRPOConfig,
    PPOConfig,
    RecipeConfig,
    RMConfig,
    SampleConfig,
    ScoreConfig,
    SFTConfig,
)
from covey.config.base import Composition, options


@dataclass(frozen=True)
class NotInSwift:
    """Marks a flag that ms-swift does not have."""


NOT_IN_SWIFT = NotInSwift()
SwiftDefault = bool | int | float | str | None | NotInSwift


@dataclass(frozen=True)
class Flag:
    """A mapped flag: its meaning, its unit, and ms-swift 4.6's default (full-parameter GRPO)."""

    name: str
    help: str
    unit: str = ""
    swift: SwiftDefault = NOT_IN_SWIFT


@dataclass(frozen=True)
class Fixed:
    """ms-swift flags with one behaviour here. ``accepts``: values that ask for it; ``note``: what is printed then."""

    names: tuple[str, ...]
    accepts: tuple[str, ...]
    note: str
    reason: str


COMMANDS: dict[str, type[Composition]] = {
    "rlhf": GRPOConfig,
    "rlhf --rlhf_type ppo": PPOConfig,
    "rlhf --rlhf_type dpo": DPOConfig,
    "rlhf --rlhf_type rm": RMConfig,
    "sft": SFTConfig,
    "eval": EvalRunConfig,
    "chat": ChatConfig,
    "sample": SampleConfig,
    "score": ScoreConfig,
    "check-reward": CheckRewardConfig,
    "recipe": RecipeConfig,
    "bench": BenchConfig,
}

RLHF_TYPES: dict[str, str] = {
    "grpo": "rlhf",
    "ppo": "rlhf --rlhf_type ppo",
    "dpo": "rlhf --rlhf_type dpo",
    "rm": "rlhf --rlhf_type rm",
}
"""Value of ``--rlhf_type`` -> its command."""

_MODEL = "--model smollm2-135m (embedded), a folder, or a hub name such as Qwen/Qwen2.5-3B-Instruct"
_REWARDED = {
    "model": _MODEL,
    "dataset": "--dataset countdown (generated puzzles), a rows.jsonl file, or a hub name",
    "reward_funcs": "--reward_funcs format accuracy, or your own: --external_plugins my.py --reward_funcs my_name",
}
_PAIRED = {
    "model": _MODEL,
    "dataset": "--dataset pairs.jsonl (prompt, chosen, rejected), countdown (solution against guess), or a hub name",
}

REQUIRED: dict[str, dict[str, str]] = {
    "rlhf": _REWARDED,
    "rlhf --rlhf_type ppo": _REWARDED,
    "rlhf --rlhf_type dpo": _PAIRED,
    "rlhf --rlhf_type rm": _PAIRED,
    "sft": {
        "model": _MODEL,
        "dataset": "--dataset countdown (worked solutions), a rows.jsonl file with messages, or a hub name",
    },
    "eval": {
        "model": "--model runs/my_run/final, smollm2-135m, or a hub name",
        "dataset": "--dataset countdown (held-out puzzles), a rows.jsonl file, or a hub name",
    },
    "chat": {"model": "--model runs/my_run/final, smollm2-135m, or a hub name"},
    "sample": {
        "model": "--model runs/my_run/final, smollm2-135m, or a hub name",
        "prompt": '--prompt "24 from 8, 6, 2"',
    },
    "score": {"file": "--file rows.jsonl (rows with completion, nums or numbers, target)"},
    "check-reward": {},
    "recipe": {},
    "bench": {"model": "--model runs/warm/final, the model that every contender starts from"},
}

FLAGS: tuple[Flag, ...] = (
    # model
    Flag("model", "folder, hub name, or the embedded smollm2-135m", swift=None),
    Flag(
        "torch_dtype",
        "precision of the computation, auto: bfloat16 where the device has it, else float32 (a CPU without it is five"
        " times slower in bfloat16); training keeps fp32 master weights",
        swift="from the model",
    ),
    Flag("device", "where to run; auto takes the GPU if there is one"),
    # data
    Flag("dataset", "countdown (generated), a jsonl file, a folder, or a hub name; source#N draws N rows"),
    Flag("prompt_template", "user message with {column} places, for rows without one; default: the task's own"),
    Flag("system", "system message for rows without one; default: the task's own", swift=None),
    Flag(
        "max_length", "longest prompt (sft: prompt + answer); default: what the model's context leaves", "tokens", None
    ),
    Flag(
        "truncation_strategy", "longer prompts stop the run (raise) or are dropped and counted (delete)", swift="left"
    ),
    Flag("bad_rows", "unusable rows stop the run with one report (fail) or are dropped and counted (drop)"),
    Flag("dataset_shuffle", "a new order of the rows in each epoch", swift=True),
    Flag("data_seed", "seed of the row order and of generated puzzles; default: --seed", swift=42),
    # the puzzle generator
    Flag("countdown_num_numbers", "fewest and most numbers of a puzzle"),
    Flag("countdown_number_range", "smallest and largest number"),
    Flag("countdown_target_range", "smallest and largest target"),
    Flag("countdown_operators", "operators a puzzle may need, as one word"),
    Flag("countdown_require_integer_steps", "every puzzle has a solution without fractions on the way"),
    Flag("countdown_num_puzzles", "size of the generated training set", "puzzles"),
    Flag(
        "countdown_guess_share",
        "share of the demonstrations that answer at once with a random expression: a cold start as mixed as found data,"
        " in which thinking first is one habit of two",
    ),
    Flag(
        "countdown_unsolvable_share",
        "share of the demonstrations whose target can't be reached: they show how a search without a hit ends",
    ),
    # sampling
    Flag("temperature", "sampling temperature; 0 is greedy (not for training)", swift=0.9),
    Flag("top_k", "sample from the k most likely tokens; -1: all", "tokens", -1),
    Flag("top_p", "sample from the smallest set of tokens with this probability", swift=1.0),
    Flag("min_p", "drop tokens less likely than this share of the most likely one", swift=0.0),
    Flag("max_completion_length", "longest completion", "tokens", 512),
    # rollout
    Flag("num_generations", "G, completions per prompt (the group)", "completions", 8),
    Flag(
        "steps_per_generation",
        "micro-batches per rollout; default: --gradient_accumulation_steps",
        "micro-batches",
        None,
    ),
    Flag("generation_batch_size", "the same, counted over all devices; give one of the two", "completions", None),
    Flag("num_iterations", "passes over each rollout (mu)", swift=1),
    # objective
    Flag("loss_type", "policy loss; for dpo the loss on a pair", swift="grpo"),
    Flag(
        "loss_agg_mode",
        "denominator of the loss, in verl's names; default: as the loss was published (grpo: seq-mean-token-mean,"
        " dapo: token-mean)",
    ),
    Flag(
        "advantage_estimator",
        "baseline of the advantage: the group's mean (grpo), the mean of the others (rloo), ...",
        swift="grpo",
    ),
    Flag(
        "scale_rewards",
        "what advantages are divided by: the std of the group or the batch, nothing, or each reward on its own (gdpo);"
        " default: group for grpo, as published for the other estimators and losses",
        swift=None,
    ),
    Flag("beta", "weight of the KL term; 0: no KL term, no reference model (dpo: pull to the reference)", swift=0.04),
    Flag("kl_estimator", "per-token KL estimator; default: k3 in the loss, k1 in the reward"),
    Flag(
        "kl_in_reward",
        "subtract the KL from the reward instead of adding it to the loss; default: as the estimator was published"
        " (rloo and reinforce_plus_plus: true)",
        swift=None,
    ),
    Flag("overlong_filter", "leave truncated completions out of the loss", swift=False),
    Flag("entropy_coef", "weight of an entropy bonus, averaged like the loss (negative: a malus)"),
    Flag(
        "top_entropy_quantile",
        "train only this share of the tokens, those of highest entropy; costs a forward pass",
        swift=1.0,
    ),
    Flag(
        "positive_nll_coef",
        "VAPO: weight of the negative log-likelihood of correct completions (accuracy 1; without that reward: a"
        " positive total)",
    ),
    # without ms-swift's defaults: those of a loss are its own, and the objective line of a run says them
    *(Flag(name, text) for name, text in LOSS_OPTION_HELP.items()),
    # engine against trainer
    Flag(
        "rollout_importance_sampling_mode",
        "weigh tokens or whole completions by trainer against engine probability, truncated or masked; default: off",
        swift=None,
    ),
    Flag("rollout_importance_sampling_threshold", "largest weight", swift=2.0),
    Flag("rollout_importance_sampling_min", "smallest weight that a mask keeps (IcePop: 0.5)"),
    Flag(
        "off_policy_sequence_mask_delta",
        "drop completions of negative advantage that the policy has left by more than this, on average per token",
        "nats",
        None,
    ),
    # critic (ppo)
    Flag("gamma", "discount of later rewards"),
    Flag("lam", "lambda of the generalised advantage estimation"),
    Flag("lam_value", "lambda of the critic's targets; default: lam (VAPO: 1)"),
    Flag("length_adaptive_alpha", "VAPO: lambda 1 - 1/(alpha x length) instead of --lam (0.05)"),
    Flag("whiten_advantages", "normalise advantages over the tokens of the rollout"),
    Flag("cliprange_value", "a value may move this far from its old one before its loss stops falling"),
    Flag("critic_lr", "learning rate of the critic, constant"),
    Flag("critic_warmup", "steps at the start that train the critic only", "optimizer steps"),
    # control
    Flag("kl_control", "how beta moves: fixed; threshold (the article's rule); proportional (Ziegler)"),
    Flag("kl_high", "threshold: above this mean KL beta is multiplied by --beta_up", "nats per token"),
    Flag("kl_low", "threshold: below this mean KL beta is multiplied by --beta_down", "nats per token"),
    Flag("beta_up", "threshold: factor on beta, once per optimizer step"),
    Flag("beta_down", "threshold: factor on beta, once per optimizer step"),
    Flag("kl_target", "proportional: the mean KL to hold", "nats per token"),
    Flag("kl_horizon", "proportional: beta moves by at most 20% per this many completions", "completions"),
    Flag("beta_min", "beta never goes below"),
    Flag("beta_max", "beta never goes above"),
    Flag("kl_alarm", "say it when the mean KL of a step rises above this", "nats per token"),
    Flag("use_adaptive_entropy", "move --entropy_coef to hold --entropy_target (Skywork-OR1)"),
    Flag("entropy_target", "the bonus acts, and its weight grows, while the entropy is at most this", "nats per token"),
    Flag("entropy_coef_delta", "change of the weight per optimizer step"),
    Flag("entropy_coef_min", "the weight never goes below"),
    Flag("entropy_coef_max", "the weight never goes above"),
    Flag("drop_zero_std", "leave groups without variance out of the denominators"),
    Flag("dynamic_sample", "sample other prompts in the place of groups with one outcome (DAPO)", swift=False),
    Flag("adaptive_budget", "sample more of a prompt until its group has both outcomes"),
    Flag("max_resample_times", "dynamic sampling: samplings after the first", swift=3),
    Flag("resample_exhausted", "then: train on what there is, keep it for the next rollout, or stop"),
    Flag("max_group_size", "adaptive budget: default four times the size of a group", "completions"),
    Flag(
        "zero_std_ladder",
        "remedies added one by one while too many groups have one outcome: drop refill budget group_size temperature",
    ),
    Flag("zero_std_high", "climb above this share of groups with one outcome"),
    Flag("zero_std_low", "step down below this share"),
    Flag("zero_std_patience", "after as many in a row", "rollouts"),
    Flag("ladder_temperature", "the temperature of that rung"),
    Flag("curriculum", "stages: from easy to hard; solve_rate: first what is solved half of the time"),
    Flag("curriculum_group_sizes", "completions per prompt of each stage", "completions"),
    Flag("curriculum_advance", "solve rate that ends a stage (or an equal share of the run)"),
    Flag("curriculum_memory", "what is kept of a prompt's solve rate when it is sampled again"),
    # contrast
    Flag("contrastive_coef", "weight of a contrast over the completions of a prompt; 0: none"),
    Flag("contrastive_loss", "InfoNCA (cross-entropy to the rewards' softmax) or GVPO (variance of score - reward)"),
    Flag("contrastive_scale", "score of a completion per nat of log-ratio"),
    Flag("contrastive_alpha", "infonca: temperature of the rewards' softmax"),
    # rewards
    Flag(
        "reward_funcs",
        "accuracy, format, soft_overlong, diversity, repetition, cosine, regex, json_schema, functions from"
        " --external_plugins, or dotted paths",
    ),
    Flag(
        "reward_weights",
        "one per function; default: 0.4 format + 0.6 accuracy for exactly these two, else 1",
        swift=None,
    ),
    Flag("external_plugins", "Python files that define reward functions"),
    *(Flag(name, text) for name, text in REWARD_OPTION_HELP.items()),
    Flag("reward_workers", "processes in which rewards of your own run; 0: in the trainer's", "processes"),
    Flag("reward_timeout", "for one call of a reward of your own; then its process is killed", "seconds"),
    Flag("max_reward_failures", "share of completions on which a reward may fail before the run stops"),
    # optimizer
    Flag("learning_rate", "peak learning rate", swift=1e-5),
    Flag("lr_scheduler_type", "shape of the decay after the warm-up", swift="cosine"),
    Flag("warmup_ratio", "share of the run that warms up", swift=0.0),
    Flag("warmup_steps", "warm-up as a count instead", "optimizer steps", 0),
    Flag("weight_decay", "AdamW weight decay", swift=0.1),
    Flag("adam_beta1", "AdamW beta1", swift=0.9),
    Flag("adam_beta2", "AdamW beta2", swift=0.95),
    Flag("adam_epsilon", "AdamW epsilon", swift=1e-8),
    Flag("max_grad_norm", "gradient norm is clipped to this", swift=1.0),
    # batch
    Flag(
        "per_device_train_batch_size",
        "micro-batch on one device (grpo, ppo: completions; dpo, rm: pairs; sft: examples)",
        "rows",
        1,
    ),
    Flag("gradient_accumulation_steps", "micro-batches per optimizer step", "micro-batches", 1),
    Flag("gradient_checkpointing", "recompute activations in the backward pass: less memory, more time", swift=True),
    # run
    Flag("output_dir", "the run folder; default: a new one under runs/", swift=None),
    Flag("max_steps", "length of the run; -1: --num_train_epochs decides", "optimizer steps", -1),
    Flag("num_train_epochs", "passes over the training prompts", swift=3.0),
    Flag("save_steps", "checkpoint interval; 0: only at the end", "optimizer steps", 500),
    Flag("save_total_limit", "checkpoints kept; none: all", swift=None),
    Flag("logging_steps", "metrics interval", "optimizer steps", 5),
    Flag("seed", "seed of everything random but the data order", swift=42),
    Flag("report_to", "where metrics go besides the run folder", swift="tensorboard"),
    Flag("resume_from_checkpoint", "latest, or a checkpoint folder", swift=None),
    Flag("dry_run", "print the resolved config and the batch arithmetic, then stop before the model loads"),
    # evaluation
    Flag("val_dataset", "held-out prompts; default: held-out puzzles when --dataset is countdown"),
    Flag("eval_steps", "evaluation interval; 0: none", "optimizer steps", "as save_steps"),
    Flag("eval_num_prompts", "held-out prompts per evaluation", "prompts"),
    Flag("eval_num_samples", "completions per held-out prompt", "completions"),
    Flag("json", "print the result as one JSON object on standard output"),
    # bench
    Flag("seconds", "training time per contender; default: as the bench says", "seconds"),
    Flag("rounds", "turns in which the contenders use it; default: as the bench says"),
    # sample, score
    Flag("prompt", "user messages, one per prompt"),
    Flag("num_samples", "completions per prompt", "completions"),
    Flag("task", "whose checker judges the rows; by_row: the column task says it; default: countdown if rows look so"),
    Flag("file", "jsonl file of completions"),
)

ALIASES: dict[str, str] = {
    "model_name_or_path": "model",  # TRL
    "dataset_name": "dataset",  # TRL
    "dtype": "torch_dtype",  # TRL
    "mask_truncated_completions": "overlong_filter",  # TRL
    "kl_coef": "beta",  # ms-swift and TRL, ppo
    "cliprange": "epsilon",  # the same
    "num_ppo_epochs": "num_iterations",  # the same
    "num_generations_eval": "eval_num_samples",  # ms-swift and TRL
}

_LORA = "LoRA comes with Part 6; this version trains all parameters (--tuner_type full)"
_VLLM = "vLLM rollouts come with Part 6; this version samples with its own engine (--use_vllm false)"
_DISTRIBUTED = "more than one device comes with Part 7; this version trains on one CPU or CUDA device"

FIXED: tuple[Fixed, ...] = (
    Fixed(("tuner_type", "train_type"), ("full",), "all parameters are trained, as always here", _LORA),
    Fixed(("lora_rank", "lora_alpha", "lora_dropout", "target_modules", "adapters", "ref_adapters"), (), "", _LORA),
    Fixed(("quant_method", "quant_bits"), (), "", "quantized training comes with Part 6 (LoRA/QLoRA)"),
    Fixed(("use_vllm",), ("false",), "completions are sampled by Covey's own engine", _VLLM),
    Fixed(
        (
            "vllm_mode",
            "vllm_server_host",
            "vllm_server_port",
            "vllm_server_base_url",
            "vllm_server_timeout",
            "vllm_gpu_memory_utilization",
            "vllm_tensor_parallel_size",
            "vllm_max_model_len",
            "vllm_enforce_eager",
            "vllm_enable_lora",
            "offload_model",
            "offload_optimizer",
            "move_model_batches",
        ),
        (),
        "",
        _VLLM,
    ),
    Fixed(("sleep_level",), ("0",), "there is no second engine to put to sleep", _VLLM),
    Fixed(("async_generate",), ("false",), "rollout and training alternate, as always here", "comes with Part 6"),
    Fixed(("deepspeed", "fsdp", "nproc", "backend", "ddp_backend"), (), "", _DISTRIBUTED),
    Fixed(
        (
            "sequence_parallel_size",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
        ),
        ("1",),
        "one device, as always here",
        _DISTRIBUTED,
    ),
    Fixed(("real_tau", "fipo_decay_rate"), (), "", "REAL and FIPO are not in this version"),
    Fixed(
        ("log_entropy",), ("true",), "entropy is always logged", "entropy is always logged and costs next to nothing"
    ),
    Fixed(
        ("sync_ref_model",),
        ("false",),
        "the reference is the policy at the start",
        "a moving reference model is not in this version",
    ),
    Fixed(("ref_model",), (), "", "the reference is the policy at the start; another one is not in this version"),
    Fixed(
        ("reward_model", "reward_model_plugin"),
        (),
        "",
        "rewards from a reward model come with Part 3; use --reward_funcs",
    ),
    Fixed(
        ("multi_turn_scheduler", "max_turns", "gym_env", "use_gym_env"),
        (),
        "",
        "several turns per completion are not in this version",
    ),
    Fixed(
        ("repetition_penalty",),
        ("1.0", "1"),
        "the model's own distribution is sampled",
        "a penalty would make the sampled distribution another one than the trained one",
    ),
    Fixed(
        ("log_completions",),
        ("true",),
        "completions are always written, to rollouts/ in the run folder",
        "completions are always written, to rollouts/ in the run folder",
    ),
    Fixed(
        ("padding_free", "packing"),
        ("true", "false"),
        "there is no padding in Covey's batches, whatever this says",
        "there is no padding in Covey's batches",
    ),
    Fixed(
        ("use_liger_kernel",),
        ("false",),
        "the language-model head runs in chunks, on completion tokens only",
        "Covey's own chunked head does what the Liger loss does",
    ),
    Fixed(("optim",), ("adamw_torch",), "AdamW, as always here", "this version has AdamW only"),
    Fixed(("bf16", "fp16"), (), "", "precision is set by --torch_dtype auto|bfloat16|float32"),
    Fixed(
        ("save_strategy", "eval_strategy"),
        ("steps",),
        "intervals count optimizer steps, as always here",
        "intervals count optimizer steps: use --save_steps and --eval_steps (0 switches off)",
    ),
    Fixed(
        ("strict",),
        ("true",),
        "unusable rows stop the run, as --bad_rows fail says",
        "use --bad_rows drop to leave unusable rows out",
    ),
    Fixed(
        ("split_dataset_ratio",),
        ("0", "0.0"),
        "nothing is split off the training set",
        "give held-out rows with --val_dataset",
    ),
    Fixed(("streaming",), ("false",), "all rows are read and checked first", "all rows are read and checked first"),
    Fixed(
        ("use_hf",),
        ("true",),
        "names are looked up on the Hugging Face hub",
        "ModelScope is not a source in this version",
    ),
    Fixed(
        ("model_type", "template", "chat_template"),
        (),
        "",
        "architecture and chat template are read from the model's own folder",
    ),
    Fixed(
        ("dataset_num_proc", "dataloader_num_workers", "load_from_cache_file"),
        ("0", "1", "true", "false"),
        "rows are prepared once, in this process",
        "rows are prepared once, in this process",
    ),
    Fixed(("vf_coef",), (), "", "the critic has an optimizer of its own: --critic_lr"),
    Fixed(("whiten_rewards",), ("false",), "advantages are whitened instead", "use --whiten_advantages"),
    Fixed(("missing_eos_penalty",), (), "", "use --overlong_filter, or --reward_funcs soft_overlong"),
    Fixed(("num_mini_batches",), (), "", "use --steps_per_generation: micro-batches per rollout"),
    Fixed(("local_rollout_forward_batch_size",), (), "", "use --per_device_train_batch_size"),
    Fixed(("rpo_alpha", "ld_alpha"), (), "", "dpo has the losses sigmoid, sigmoid_norm and ipo, without extra terms"),
)

OTHER_RLHF_TYPES = ("orpo", "simpo", "kto", "cpo", "gkd")
"""ms-swift's other values of ``--rlhf_type``."""

LATER_COMMANDS: dict[str, str] = {
    "plan": "Part 5 (--dry_run true prints the batch arithmetic now)",
    "replay": "Part 5",
    "rollout": "Part 6",
    "export": "Part 6",
    "megatron": "Part 7",
    "report": "Part 8",
    "watch": "Part 8",
}
"""Subcommands that a later part brings."""


def flag(name: str) -> Flag:
    """The table line of a mapped flag."""
    return _BY_NAME[name]


def fixed_flags() -> dict[str, Fixed]:
    """Name -> line for every fixed flag."""
    return {name: line for line in FIXED for name in line.names}


def commands_reading(name: str) -> list[str]:
    """The commands that read a mapped flag."""
    return [command for command, config in COMMANDS.items() if name in options(config)]


_BY_NAME = {line.name: line for line in FLAGS}

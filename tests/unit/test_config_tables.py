"""The choices of a flag are the lines of the table that the flag picks from."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from covey.algo.advantages import ADVANTAGE_ESTIMATORS, SCALES
from covey.algo.contrastive import CONTRASTS
from covey.algo.corrections import CORRECTIONS
from covey.algo.kl import KL_ESTIMATORS
from covey.algo.losses import LOSSES
from covey.algo.preference import PREFERENCES
from covey.algo.weights import AGGREGATIONS
from covey.cli.flags import flag
from covey.cli.model_names import EMBEDDED_MODELS
from covey.config import AlgoConfig, ContrastConfig, GRPOConfig, LossConfig, MismatchConfig, PreferenceConfig
from covey.config.algo import FIXED_SCALES
from covey.config.base import Section, default_values, field_types, options
from covey.config.presets import PRESETS, expand
from covey.config.sections import DEFAULT_PAIR_WEIGHTS
from covey.config.values import without_none
from covey.errors import UserError
from covey.models.embedded import EMBEDDED
from covey.rewards import DEFAULT_WEIGHTS

DEFAULTS = default_values(GRPOConfig)


def choices(name: str, section: type[Section] = AlgoConfig) -> set[Any]:
    return set(get_args(without_none(field_types(section)[name])))


def test_choices_are_the_tables_of_algo() -> None:
    assert choices("loss_type") == set(LOSSES)
    assert choices("advantage_estimator") == set(ADVANTAGE_ESTIMATORS)
    assert choices("kl_estimator") == set(KL_ESTIMATORS)
    assert choices("loss_agg_mode") == set(AGGREGATIONS)
    assert choices("scale_rewards") == (set(SCALES) - set(FIXED_SCALES)) | {"gdpo"}
    assert choices("rollout_importance_sampling_mode", MismatchConfig) == set(CORRECTIONS)
    assert choices("contrastive_loss", ContrastConfig) == set(CONTRASTS)
    assert choices("loss_type", PreferenceConfig) == set(PREFERENCES)


def test_every_option_of_a_loss_is_a_flag_with_a_help_text() -> None:
    """So adding a loss is one file and one line of LOSSES."""
    wanted = {name for spec in LOSSES.values() for name in spec.option_names()}
    assert wanted == set(field_types(LossConfig)) <= set(options(GRPOConfig))
    assert all(flag(name).help for name in wanted)


@pytest.mark.parametrize("loss", LOSSES)
def test_an_aggregation_and_a_scale_of_a_loss_exist(loss: str) -> None:
    assert LOSSES[loss].aggregation in AGGREGATIONS
    assert LOSSES[loss].scale in {None, *SCALES}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_config_that_reads_all_it_sets(name: str) -> None:
    config = GRPOConfig.from_dict({"preset": name})
    values = config.to_dict()
    assert {key: values[key] for key in PRESETS[name].options} == dict(PRESETS[name].options)
    assert GRPOConfig.from_dict(values) == config


def test_what_is_given_beside_a_preset_wins() -> None:
    assert expand({"preset": "gspo", "epsilon": 0.1, "seed": 1}, DEFAULTS) == {
        "loss_type": "gspo",
        "epsilon": 0.1,
        "epsilon_high": 4e-4,
        "beta": 0.0,
        "seed": 1,
    }


def test_what_nothing_reads_beside_the_given_options_is_left_out_of_a_preset() -> None:
    assert "kl_estimator" not in expand({"preset": "grpo", "beta": 0.0}, DEFAULTS)
    assert GRPOConfig.from_dict({"preset": "rloo", "beta": 0}).algo.beta == 0
    with pytest.raises(UserError, match="--preset gspo is --loss_type gspo, and --loss_type grpo is given"):
        GRPOConfig.from_dict({"preset": "gspo", "loss_type": "grpo"})


def test_what_stands_twice_for_the_layers_sake_agrees() -> None:
    """config and the command line may not import rewards and models, which hold the same two tables."""
    assert DEFAULT_PAIR_WEIGHTS == DEFAULT_WEIGHTS
    assert set(EMBEDDED_MODELS) == set(EMBEDDED)

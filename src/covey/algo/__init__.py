"""The algorithms as pure functions over tensors: no configuration, no files, no distributed calls.

The order of a step: rewards -> ``group_advantages`` -> ``truncation_mask`` -> ``aggregation_weights`` (all
denominators, once) -> ``Objective`` per micro-batch -> ``merge_metrics``.
"""

from covey.algo.advantages import ADVANTAGE_ESTIMATORS, group_advantages, zero_std_groups
from covey.algo.kl import KL_ESTIMATORS
from covey.algo.losses import LOSSES, ClipParams
from covey.algo.masks import truncation_mask
from covey.algo.metrics import Metrics, MetricSum, merge_metrics
from covey.algo.objective import Objective
from covey.algo.weights import AGGREGATIONS, AggregationParams, BatchCounts, aggregation_weights, count_batch

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "AGGREGATIONS",
    "KL_ESTIMATORS",
    "LOSSES",
    "AggregationParams",
    "BatchCounts",
    "ClipParams",
    "MetricSum",
    "Metrics",
    "Objective",
    "aggregation_weights",
    "count_batch",
    "group_advantages",
    "merge_metrics",
    "truncation_mask",
    "zero_std_groups",
]

"""What every training on given answers reads: supervised, on pairs, or of a reward model."""

from __future__ import annotations

from dataclasses import dataclass, field

from covey.config.base import Composition, changed_options
from covey.config.rules import refuse_unread
from covey.config.sections import (
    BatchConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    TrainCountdownConfig,
    TrainDataConfig,
)


@dataclass(frozen=True)
class ExamplesConfig(Composition):
    """A model, data with answers, and how it is trained."""

    model: ModelConfig = field(default=ModelConfig())
    data: TrainDataConfig = field(default=TrainDataConfig())
    countdown: TrainCountdownConfig = field(default=TrainCountdownConfig())
    optim: OptimConfig = field(default=OptimConfig(learning_rate=1e-5))
    batch: BatchConfig = field(default=BatchConfig())
    run: RunConfig = field(default=RunConfig())

    def check(self) -> None:
        refuse_unread(self.to_dict(), changed_options(self))

"""Translation: the targets that the head learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmo.tasks.data.examples import SourceText
from elmo.tasks.data.units import END, SPECIAL, TargetUnits
from elmo.tasks.heads.layers import FeatureVectors
from elmo.tasks.heads.translation import IGNORED, TargetBatch
from elmo.tasks.kinds.translation import Translation, TranslationOptions

FIRST = len(SPECIAL)


class _Recorder(nn.Module):
    """A head that keeps the targets it is trained on."""

    def loss(self, features: FeatureVectors, targets: TargetBatch) -> Tensor:
        self.targets = targets
        return features.inputs.sum()


def test_only_a_target_that_is_cut_has_no_end() -> None:
    units = TargetUnits((*SPECIAL, "▁a", "▁b", "▁c"), None)
    task, head = Translation(units, TranslationOptions(units="words", max_units=2)), _Recorder()
    examples = [SourceText(("x",), target) for target in ("a", "a b", "a b c")]
    task.loss(head, lambda texts: FeatureVectors(torch.zeros(3, 1, 4), torch.ones(3, 1).bool()), examples)
    assert head.targets.ids.tolist() == [[FIRST, END, IGNORED], [FIRST, FIRST + 1, END], [FIRST, FIRST + 1, IGNORED]]

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from elmo.model.token_layer import IdEmbedding


def test_it_starts_as_torch_s_own_does() -> None:
    torch.manual_seed(3)
    expected = nn.Embedding(6, 4, padding_idx=0)
    torch.manual_seed(3)
    found = IdEmbedding(5, 4)
    assert torch.equal(found.weight, expected.weight)
    assert (found.weight[0] == 0).all()


def test_a_network_without_weights_is_made_without_torch_s_compiler() -> None:
    code = (
        "import sys, torch\nfrom elmo.model.bilm import BiLm\nfrom elmo.train.options import PRESETS\n"
        "with torch.device('meta'): BiLm.from_config(PRESETS['tiny'])\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

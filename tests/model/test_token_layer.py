from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from elmo.model.token_layer import IdEmbedding


def test_an_id_embedding_starts_with_the_weights_of_nn_embedding() -> None:
    torch.manual_seed(3)
    expected = nn.Embedding(6, 4, padding_idx=0)
    torch.manual_seed(3)
    embedding = IdEmbedding(5, 4)
    assert torch.equal(embedding.weight, expected.weight)
    assert (embedding.weight[0] == 0).all()


@pytest.mark.slow
def test_a_network_on_the_meta_device_does_not_import_the_compiler_of_torch() -> None:
    code = (
        "import sys, torch\nfrom elmo.model.bilm import BiLm\nfrom elmo.train.options import PRESETS\n"
        "with torch.device('meta'): BiLm.from_config(PRESETS['tiny'])\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""Train a classifier of sentences in PyTorch, with BiLm and LayerMix as parts of the network, and export it.

python examples/pytorch/classifier.py train.txt classifier.pt2    # lines such as "1 A good film ."
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from elmo import BiLm, Elmo, LayerMix
from elmo.integrations import export_bilm


class Sentences(Dataset[tuple[list[str], int]]):
    """Lines of a label and a tokenized sentence."""

    def __init__(self, path: Path) -> None:
        self.lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, k: int) -> tuple[list[str], int]:
        label, *words = self.lines[k]
        return words, int(label)


class Classifier(nn.Module):
    """The mean of mixed ELMo vectors, and a linear layer."""

    def __init__(self, bilm: BiLm, n_layers: int, width: int, n_labels: int) -> None:
        super().__init__()
        self.bilm = bilm  # frozen; call bilm.requires_grad_(True) to fine-tune it
        self.mix = LayerMix(n_layers, dropout=0.2)
        self.output = nn.Linear(width, n_labels)

    def forward(self, char_ids: Tensor, lengths: Tensor) -> Tensor:
        """Return one score per label, (batch, label)."""
        layers = self.bilm(char_ids, lengths=lengths).layers
        vectors = self.mix(layers)  # (batch, time, width), without boundary tokens; zero for padding
        return self.output(vectors.sum(dim=1) / (lengths - 2).clamp(min=1)[:, None])


torch.manual_seed(0)
elmo = Elmo.from_pretrained("en")
data = Sentences(Path(sys.argv[1]))


def collate(items: list[tuple[list[str], int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Build the padded ids of a batch, its lengths and its labels."""
    words, labels = zip(*items, strict=True)
    batch = elmo.batch(words)
    return torch.as_tensor(batch.char_ids), torch.as_tensor(batch.lengths), torch.tensor(labels)


loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)
network = Classifier(elmo.bilm, elmo.n_layers, elmo.width, n_labels=1 + max(label for _, label in data))
optimizer = torch.optim.Adam([weight for weight in network.parameters() if weight.requires_grad], lr=0.01)
for epoch in range(5):
    losses = []
    for char_ids, lengths, labels in loader:
        loss = nn.functional.cross_entropy(network(char_ids, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mix = network.mix
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, mix {mix.shares.tolist()}, gamma {mix.gamma.item()}")

# The biLM with the learned mix, for programs that have PyTorch but not elmo.
torch.export.save(export_bilm(elmo, mix=network.mix), sys.argv[2])

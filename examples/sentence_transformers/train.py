"""Train a sentence encoder on pairs of sentences with a score, using sentence-transformers.

    pip install 'pyelmo[sentence-transformers]'
    python examples/sentence_transformers/train.py --train train.tsv --dev dev.tsv --out encoder

The files have the columns of SICK: sentence_A, sentence_B and relatedness_score (1 to 5), separated by tabs. Files that
end in .xz are decompressed. The biLM stays frozen unless --trainable is given; the mix of its layers and a dense layer
after the pooling are trained. The script prints the Spearman correlation of the cosines with the scores on the
development set before and after training, and checks that the saved encoder gives the same vectors.
"""

import argparse
import csv
import lzma
import tempfile
import time
from pathlib import Path

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from torch import nn
from transformers import TrainerCallback

from elmo.integrations import ElmoModule, build_sentence_transformer, load_sentence_transformer


def read_pairs(path: Path) -> Dataset:
    """Read pairs of sentences, with scores between 0 and 1."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return Dataset.from_dict(
        {
            "sentence_A": [row["sentence_A"] for row in rows],
            "sentence_B": [row["sentence_B"] for row in rows],
            "score": [(float(row["relatedness_score"]) - 1) / 4 for row in rows],
        }
    )


class StopAfter(TrainerCallback):
    """Ends the training after a number of minutes."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= time.monotonic() > self.end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="en")
    parser.add_argument("--trainable", action="store_true", help="train the biLM too")
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    train, dev = read_pairs(arguments.train), read_pairs(arguments.dev)
    evaluator = EmbeddingSimilarityEvaluator(dev["sentence_A"], dev["sentence_B"], dev["score"])

    def score(model: SentenceTransformer) -> float:
        return 100 * evaluator(model)["spearman_cosine"]

    before = score(build_sentence_transformer(arguments.model))
    print(f"mean of the token vectors: Spearman {before:.1f}")

    words = ElmoModule(arguments.model, layers="mix", trainable=arguments.trainable)
    pooling = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
    dense = Dense(words.get_embedding_dimension(), 512, activation_function=nn.Tanh())
    model = SentenceTransformer(modules=[words, pooling, dense], device="cpu")
    with tempfile.TemporaryDirectory() as logs:
        options = SentenceTransformerTrainingArguments(
            output_dir=logs, num_train_epochs=arguments.epochs, per_device_train_batch_size=64,
            learning_rate=arguments.lr, warmup_steps=0.1, save_strategy="no", report_to="none", use_cpu=True,
            seed=arguments.seed, disable_tqdm=True, logging_strategy="epoch",
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model=model, args=options, train_dataset=train, loss=CoSENTLoss(model),
            callbacks=[StopAfter(arguments.minutes)],
        )  # fmt: skip
        began = time.monotonic()
        trainer.train()
    after = score(model)
    print(f"trained for {(time.monotonic() - began) / 60:.1f} minutes: Spearman {after:.1f} ({after - before:+.1f})")
    print("shares of the layers:", [round(share, 3) for share in words.encoder.mix.shares.tolist()])

    model.save(str(arguments.out))
    texts = dev["sentence_A"][:100]
    same = np.array_equal(model.encode(texts), load_sentence_transformer(arguments.out).encode(texts))
    print(f"saved to {arguments.out}; loaded again, the vectors are {'equal' if same else 'different'}")


if __name__ == "__main__":
    main()

"""Train a named entity recognizer of Flair on ELMo vectors, save it, load it and use it.

python examples/flair/tagger.py FOLDER    # with train.conll and dev.conll: words and tags such as B-LOC
"""

import sys
from pathlib import Path

from flair.data import Sentence
from flair.datasets import ColumnCorpus
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer

from elmo.integrations import ElmoEmbeddings

folder = Path(sys.argv[1])
corpus = ColumnCorpus(
    folder, {0: "text", 1: "ner"}, train_file="train.conll", dev_file="dev.conll", test_file="dev.conll"
)
tagger = SequenceTagger(
    hidden_size=64,
    embeddings=ElmoEmbeddings("en", embedding_mode="all"),
    tag_dictionary=corpus.make_label_dictionary("ner", add_unk=False),
    tag_type="ner",
)
ModelTrainer(tagger, corpus).train(folder / "tagger", learning_rate=0.1, mini_batch_size=4, max_epochs=10)

loaded = SequenceTagger.load(folder / "tagger" / "final-model.pt")
sentence = Sentence("She flew to London .", use_tokenizer=False)
loaded.predict(sentence)
print(sentence)

"""Write a model with random weights using ELMoForManyLangs' own code, and embed sentences with it.

usage: many_langs.py FOLDER REQUEST.json VECTORS.npz     (with the Python of the many_langs peer)

The request contains ``architecture`` (EFML's file), ``words`` and ``characters`` (in any order, including
EFML's special ones), ``zipped``, ``scale`` and ``sentences``. Array i has the vectors of sentence i, of shape
(layer, time, width).
"""

from __future__ import annotations

import functools
import json
import logging
import math
import random
import sys
from pathlib import Path

import numpy as np
import torch
from elmoformanylangs import Embedder
from elmoformanylangs.biLM import Model
from elmoformanylangs.modules.embedding_layer import EmbeddingLayer


def write_model(folder: Path, request: dict) -> None:
    """Write what EFML's training writes before its first step."""
    torch.manual_seed(0)
    architecture = request["architecture"]
    tokens = architecture["token_embedder"]
    shuffler = random.Random(0)
    lexicons = {}
    for name, width in (("words", tokens["word_dim"]), ("characters", tokens["char_dim"])):
        ids = list(range(len(request[name])))
        shuffler.shuffle(ids)
        lexicons[name] = dict(zip(request[name], ids, strict=True))
        lexicons[name + "_layer"] = EmbeddingLayer(width, lexicons[name], fix_emb=False) if width > 0 else None
    torch.nn.init.orthogonal_ = lambda tensor, gain: tensor  # slow, and overwritten below
    model = Model(architecture, lexicons["words_layer"], lexicons["characters_layer"], len(request["words"]))
    for parameter in model.parameters():
        fan_in = parameter.shape[-1] if parameter.dim() > 1 else 4
        parameter.data.normal_(0, request["scale"] / math.sqrt(fan_in))
    folder.mkdir(parents=True)
    torch.save = functools.partial(torch.save, _use_new_zipfile_serialization=request["zipped"])
    model.save_model(str(folder), save_classify_layer=True)
    for name, lexicon in (("char.dic", "characters"), ("word.dic", "words")):
        if name == "word.dic" or tokens["char_dim"] > 0:
            lines = [f"{token}\t{i}\n" for token, i in lexicons[lexicon].items()]
            (folder / name).write_text("".join(lines), encoding="utf-8")
    (folder / "architecture.json").write_text(json.dumps(architecture), encoding="utf-8")
    training = {"config_path": "/home/author/configs/architecture.json", "seed": 1, "gpu": 0, "lr": 0.001}
    (folder / "config.json").write_text(json.dumps(training), encoding="utf-8")


def main() -> None:
    """Write one folder and embed one batch, because EFML carries its state from batch to batch."""
    folder, request_path, out = (Path(argument) for argument in sys.argv[1:])
    request = json.loads(request_path.read_text(encoding="utf-8"))
    write_model(folder, request)
    logging.disable()
    torch.set_num_threads(2)
    with torch.no_grad():
        vectors = Embedder(str(folder), batch_size=len(request["sentences"])).sents2elmo(
            request["sentences"], output_layer=-2
        )
    np.savez(out, *vectors)


if __name__ == "__main__":
    main()

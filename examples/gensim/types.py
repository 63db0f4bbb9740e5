"""Average ELMo vectors per word, and search similar words with gensim.

python examples/gensim/types.py corpus.txt words.kv
"""

import sys

from elmo.integrations import build_keyed_vectors

corpus, out = sys.argv[1:]
vectors = build_keyed_vectors(corpus, lowercase=True, min_count=2)
vectors.save(out)  # read it with gensim.models.KeyedVectors.load
word = vectors.index_to_key[0]
print(word, vectors.get_vecattr(word, "count"), vectors.most_similar(word, topn=3))

"""Words in context: usages, nearest neighbors, substitutes, senses, semantic change and probes.

The unit of this package is a usage: a word in a sentence. The files, in reading order:

``usages``         find words in text, and compute their vectors
``indexing``       build an index of the usages of a corpus
``index``          read an index: usages, vectors and nearest usages
``search``         exact nearest-neighbor search for the index
``lance``          store usages in a Lance table, for corpora beyond memory
``neighbors``      the usages nearest to a word in context
``substitutes``    words that fit in the position of another word
``explain``        which words of a sentence determine the vector of a word
``word_pairs``     judge whether a word has the same sense in two sentences (Words in Context)
``clustering``     cluster the vectors of usages
``senses``         the senses of a word: clusters of its usages
``change``         how much words changed between periods
``wordnet``        read WordNet
``sense_corpora``  read sense-tagged corpora
``wsd``            word sense disambiguation with WordNet
``probe``          linear probes of each layer
``sharpen``        transform the states of a model so that its vectors separate senses better
``align``          map the vectors of a model to the coordinates of a model of another language

>>> from elmo import Elmo
>>> from elmo.lexicon import find_substitutes
>>> elmo = Elmo.from_pretrained("en")
>>> find_substitutes(elmo, ["I sat by the [[bank]] of the river ."], n=3)[0].items[0].word
'side'
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

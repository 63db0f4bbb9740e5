"""elmo inside other libraries, by the conventions of each: one file per library.

- ``requirements.py``: check that a library is installed in a version that works.
- ``spacy.py``: the architecture ``elmo.Tok2Vec.v1`` and the component ``elmo``.
- ``sklearn.py``: ``ElmoVectorizer`` and ``ElmoTokenVectorizer``.
- ``flair.py``: ``ElmoEmbeddings``.
- ``gensim.py``: ``build_keyed_vectors``, averages for word types.
- ``token_encoder.py``: a PyTorch module from tokens to vectors, which the next two use.
- ``sentence_transformers.py``: ``ElmoModule``, the input module of a ``SentenceTransformer``.
- ``keras.py``: ``ElmoLayer`` for Keras 3.
- ``datasets.py``: ``EmbedColumn``, a function for ``Dataset.map``.
- ``arrow.py``: encodings and jobs as Arrow tables, for pyarrow, pandas, polars and DuckDB.
- ``ray.py``: ``ElmoBatchEncoder``, a class for Ray Data's ``map_batches``.
- ``spark.py``: ``encode_batches``, a function for Spark's ``mapInArrow``.
- ``pytorch.py``: ``export_bilm``, the network for ``torch.export``.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)

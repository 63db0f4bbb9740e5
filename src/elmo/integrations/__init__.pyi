from .arrow import from_arrow as from_arrow
from .arrow import read_job as read_job
from .arrow import to_arrow as to_arrow
from .datasets import EmbedColumn as EmbedColumn
from .datasets import embed_dataset as embed_dataset
from .flair import ElmoEmbeddings as ElmoEmbeddings
from .gensim import build_keyed_vectors as build_keyed_vectors
from .keras import ElmoLayer as ElmoLayer
from .pytorch import export_bilm as export_bilm
from .ray import ElmoBatchEncoder as ElmoBatchEncoder
from .requirements import require as require
from .sentence_transformers import ElmoModule as ElmoModule
from .sentence_transformers import build_sentence_transformer as build_sentence_transformer
from .sentence_transformers import load_sentence_transformer as load_sentence_transformer
from .sklearn import ElmoTokenVectorizer as ElmoTokenVectorizer
from .sklearn import ElmoVectorizer as ElmoVectorizer
from .spacy import use_elmo_vectors as use_elmo_vectors
from .spark import encode_batches as encode_batches
from .token_encoder import TokenEncoder as TokenEncoder

__all__ = [
    "ElmoBatchEncoder",
    "ElmoEmbeddings",
    "ElmoLayer",
    "ElmoModule",
    "ElmoTokenVectorizer",
    "ElmoVectorizer",
    "EmbedColumn",
    "TokenEncoder",
    "build_keyed_vectors",
    "build_sentence_transformer",
    "embed_dataset",
    "encode_batches",
    "export_bilm",
    "from_arrow",
    "load_sentence_transformer",
    "read_job",
    "require",
    "to_arrow",
    "use_elmo_vectors",
]

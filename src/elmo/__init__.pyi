from .config import BiLmConfig as BiLmConfig
from .embed import Carry as Carry
from .embed import Elmo as Elmo
from .embed import Encoding as Encoding
from .embed import similarities as similarities
from .embed import similarity as similarity
from .errors import ChecksumError as ChecksumError
from .errors import ConfigError as ConfigError
from .errors import DataError as DataError
from .errors import DownloadError as DownloadError
from .errors import ElmoError as ElmoError
from .errors import EncodingError as EncodingError
from .errors import FormatError as FormatError
from .errors import MissingExtraError as MissingExtraError
from .errors import NotFiniteError as NotFiniteError
from .errors import OutputError as OutputError
from .errors import SentenceTooLongError as SentenceTooLongError
from .errors import ServiceError as ServiceError
from .errors import ShapeError as ShapeError
from .errors import StateError as StateError
from .errors import TrainingError as TrainingError
from .formats import convert as convert
from .jobs import read_embeddings as read_embeddings
from .lexicon.explain import explain as explain
from .model import BiLm as BiLm
from .model import LayerMix as LayerMix
from .model import LayerMixes as LayerMixes
from .model import Layers as Layers
from .plots.training import draw_curves as draw_curves
from .predict import perplexity as perplexity
from .serve.client import AsyncClient as AsyncClient
from .serve.client import Client as Client
from .train import resume_bilm as resume_bilm
from .train import train_bilm as train_bilm

__version__: str

__all__ = [
    "AsyncClient",
    "BiLm",
    "BiLmConfig",
    "Carry",
    "ChecksumError",
    "Client",
    "ConfigError",
    "DataError",
    "DownloadError",
    "Elmo",
    "ElmoError",
    "Encoding",
    "EncodingError",
    "FormatError",
    "LayerMix",
    "LayerMixes",
    "Layers",
    "MissingExtraError",
    "NotFiniteError",
    "OutputError",
    "SentenceTooLongError",
    "ServiceError",
    "ShapeError",
    "StateError",
    "TrainingError",
    "convert",
    "draw_curves",
    "explain",
    "perplexity",
    "read_embeddings",
    "resume_bilm",
    "similarities",
    "similarity",
    "train_bilm",
]

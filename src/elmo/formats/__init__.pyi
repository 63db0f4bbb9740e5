from .bilm_hdf5 import read_files as read_files
from .loading import FormatReader as FormatReader
from .loading import ModelInfo as ModelInfo
from .loading import bundled_name as bundled_name
from .loading import convert as convert
from .loading import describe as describe
from .loading import detect as detect
from .loading import load as load
from .native import add_warm as add_warm
from .pretrained import MixWeights as MixWeights
from .pretrained import Pretrained as Pretrained
from .pretrained import SoftmaxWeights as SoftmaxWeights
from .pretrained import WarmState as WarmState
from .pretrained import fingerprint as fingerprint

__all__ = [
    "FormatReader",
    "MixWeights",
    "ModelInfo",
    "Pretrained",
    "SoftmaxWeights",
    "WarmState",
    "add_warm",
    "bundled_name",
    "convert",
    "describe",
    "detect",
    "fingerprint",
    "load",
    "read_files",
]

from .bilm_hdf5 import read_files as read_files
from .hub_upload import CardScore as CardScore
from .hub_upload import HubUpload as HubUpload
from .native import add_warm as add_warm
from .pretrained import FormatReader as FormatReader
from .pretrained import MixWeights as MixWeights
from .pretrained import ModelInfo as ModelInfo
from .pretrained import Pretrained as Pretrained
from .pretrained import SoftmaxWeights as SoftmaxWeights
from .pretrained import WarmState as WarmState
from .pretrained import bundled_folder as bundled_folder
from .pretrained import bundled_models as bundled_models
from .pretrained import bundled_name as bundled_name
from .pretrained import convert as convert
from .pretrained import describe as describe
from .pretrained import detect as detect
from .pretrained import fetch as fetch
from .pretrained import fingerprint as fingerprint
from .pretrained import load as load

__all__ = [
    "CardScore",
    "FormatReader",
    "HubUpload",
    "MixWeights",
    "ModelInfo",
    "Pretrained",
    "SoftmaxWeights",
    "WarmState",
    "add_warm",
    "bundled_folder",
    "bundled_models",
    "bundled_name",
    "convert",
    "describe",
    "detect",
    "fetch",
    "fingerprint",
    "load",
    "read_files",
]

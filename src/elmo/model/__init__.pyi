from .bilm import BiLm as BiLm
from .bilm import BiLmOutput as BiLmOutput
from .bilm import BiLmState as BiLmState
from .bilm import Layers as Layers
from .dropout import Dropout as Dropout
from .lstm import LstmState as LstmState
from .lstm import ProjectedLstm as ProjectedLstm
from .mix import LayerMix as LayerMix
from .mix import LayerMixes as LayerMixes
from .softmax import AdaptiveSoftmax as AdaptiveSoftmax
from .softmax import LogUniformSampler as LogUniformSampler
from .softmax import Samples as Samples
from .softmax import Softmax as Softmax
from .token_layer import CharCnn as CharCnn
from .token_layer import Highway as Highway
from .token_layer import TokenLayer as TokenLayer

__all__ = [
    "AdaptiveSoftmax",
    "BiLm",
    "BiLmOutput",
    "BiLmState",
    "CharCnn",
    "Dropout",
    "Highway",
    "LayerMix",
    "LayerMixes",
    "Layers",
    "LogUniformSampler",
    "LstmState",
    "ProjectedLstm",
    "Samples",
    "Softmax",
    "TokenLayer",
]

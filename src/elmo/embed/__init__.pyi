from .calibration import calibrate_model as calibrate_model
from .comparison import Comparison as Comparison
from .comparison import Use as Use
from .comparison import compare as compare
from .comparison import rank_similarity as rank_similarity
from .elmo import Elmo as Elmo
from .encoding import Encoding as Encoding
from .encoding import similarities as similarities
from .encoding import similarity as similarity
from .inside import Inside as Inside
from .inside import look_inside as look_inside
from .start import Carry as Carry
from .warm import add_warm_state as add_warm_state

__all__ = [
    "Carry",
    "Comparison",
    "Elmo",
    "Encoding",
    "Inside",
    "Use",
    "add_warm_state",
    "calibrate_model",
    "compare",
    "look_inside",
    "rank_similarity",
    "similarities",
    "similarity",
]

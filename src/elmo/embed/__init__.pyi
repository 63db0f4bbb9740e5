from .comparison import Comparison as Comparison
from .comparison import Use as Use
from .comparison import compare as compare
from .elmo import Elmo as Elmo
from .encoding import Encoding as Encoding
from .encoding import similarity as similarity
from .start import Carry as Carry
from .warm import add_warm_state as add_warm_state

__all__ = ["Carry", "Comparison", "Elmo", "Encoding", "Use", "add_warm_state", "compare", "similarity"]

from .comparison import Comparison as Comparison
from .comparison import Use as Use
from .comparison import compare as compare
from .elmo import Elmo as Elmo
from .encoding import Encoding as Encoding
from .encoding import similarity as similarity
from .start import Carry as Carry

__all__ = ["Carry", "Comparison", "Elmo", "Encoding", "Use", "compare", "similarity"]

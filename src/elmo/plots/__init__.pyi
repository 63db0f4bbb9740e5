from .attention import draw_attention as draw_attention
from .change import draw_changes as draw_changes
from .compare import draw_comparison as draw_comparison
from .compare import draw_words as draw_words
from .figure import find_fonts as find_fonts
from .senses import draw_senses as draw_senses
from .training import draw_curves as draw_curves
from .words import draw_explanation as draw_explanation
from .words import draw_neighbors as draw_neighbors
from .words import draw_pairs as draw_pairs
from .words import draw_probing as draw_probing
from .words import draw_substitutes as draw_substitutes

__all__ = [
    "draw_attention",
    "draw_changes",
    "draw_comparison",
    "draw_curves",
    "draw_explanation",
    "draw_neighbors",
    "draw_pairs",
    "draw_probing",
    "draw_senses",
    "draw_substitutes",
    "draw_words",
    "find_fonts",
]

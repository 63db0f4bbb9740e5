from .change import Changes as Changes
from .change import WordChange as WordChange
from .change import change_in_corpora as change_in_corpora
from .change import change_in_uses as change_in_uses
from .index import Index as Index
from .index import Neighbor as Neighbor
from .indexing import IndexJob as IndexJob
from .indexing import build_index as build_index
from .neighbors import ApproximateIndex as ApproximateIndex
from .neighbors import Neighbors as Neighbors
from .neighbors import find_neighbors as find_neighbors
from .probe import LayerProbe as LayerProbe
from .probe import Probing as Probing
from .senses import Sense as Sense
from .senses import Senses as Senses
from .sharpen import Sharpened as Sharpened
from .substitutes import Substitute as Substitute
from .substitutes import Substituter as Substituter
from .substitutes import Substitutes as Substitutes
from .substitutes import embed_substitutes as embed_substitutes
from .substitutes import find_substitutes as find_substitutes
from .usages import Usage as Usage
from .usages import Usages as Usages
from .usages import embed_usages as embed_usages
from .usages import entry_key as entry_key
from .usages import find_marked_usage as find_marked_usage
from .usages import find_usages as find_usages
from .usages import read_uses as read_uses
from .usages import respell as respell
from .word_pairs import LabeledPairs as LabeledPairs
from .word_pairs import PairJudgments as PairJudgments
from .word_pairs import PairSimilarities as PairSimilarities
from .word_pairs import WordPair as WordPair
from .word_pairs import best_threshold as best_threshold
from .word_pairs import compare_pairs as compare_pairs
from .word_pairs import find_wic_files as find_wic_files
from .word_pairs import read_pairs as read_pairs
from .wordnet import WordNet as WordNet
from .wsd import SenseCentroids as SenseCentroids
from .wsd import disambiguate as disambiguate
from .wsd import disambiguate_text as disambiguate_text

__all__ = [
    "ApproximateIndex",
    "Changes",
    "Index",
    "IndexJob",
    "LabeledPairs",
    "LayerProbe",
    "Neighbor",
    "Neighbors",
    "PairJudgments",
    "PairSimilarities",
    "Probing",
    "Sense",
    "SenseCentroids",
    "Senses",
    "Sharpened",
    "Substitute",
    "Substituter",
    "Substitutes",
    "Usage",
    "Usages",
    "WordChange",
    "WordNet",
    "WordPair",
    "best_threshold",
    "build_index",
    "change_in_corpora",
    "change_in_uses",
    "compare_pairs",
    "disambiguate",
    "disambiguate_text",
    "embed_substitutes",
    "embed_usages",
    "entry_key",
    "find_marked_usage",
    "find_neighbors",
    "find_substitutes",
    "find_usages",
    "find_wic_files",
    "read_pairs",
    "read_uses",
    "respell",
]

from .align import AlignedModel as AlignedModel
from .align import AlignOptions as AlignOptions
from .align import Anchors as Anchors
from .align import LayerScores as LayerScores
from .align import Nearest as Nearest
from .align import Precision as Precision
from .align import align_anchors as align_anchors
from .align import align_models as align_models
from .align import apply_matrices as apply_matrices
from .align import compute_anchors as compute_anchors
from .align import match_width as match_width
from .align import nearest_by_csls as nearest_by_csls
from .align import read_dictionary as read_dictionary
from .align import read_matrices as read_matrices
from .change import ChangeOptions as ChangeOptions
from .change import Changes as Changes
from .change import PeriodChange as PeriodChange
from .change import WordChange as WordChange
from .change import change_in_corpora as change_in_corpora
from .change import change_in_uses as change_in_uses
from .change import measure_change as measure_change
from .concordance import Concordance as Concordance
from .concordance import ConcordanceLine as ConcordanceLine
from .concordance import arrange_usages as arrange_usages
from .concordance import build_concordance as build_concordance
from .explain import ContextWord as ContextWord
from .explain import Explainer as Explainer
from .explain import Explanation as Explanation
from .index import Index as Index
from .index import Neighbor as Neighbor
from .indexing import IndexJob as IndexJob
from .indexing import build_index as build_index
from .lance import LanceIndex as LanceIndex
from .neighbors import ApproximateIndex as ApproximateIndex
from .neighbors import Neighbors as Neighbors
from .neighbors import find_neighbors as find_neighbors
from .probe import LabeledSentences as LabeledSentences
from .probe import LayerProbe as LayerProbe
from .probe import ProbeResults as ProbeResults
from .probe import probe_layers as probe_layers
from .probe import read_labels as read_labels
from .sense_corpora import SenseScore as SenseScore
from .sense_corpora import SenseSentence as SenseSentence
from .sense_corpora import read_sense_corpus as read_sense_corpus
from .sense_corpora import score_senses as score_senses
from .senses import Sense as Sense
from .senses import Senses as Senses
from .senses import VectorOptions as VectorOptions
from .senses import embed_by as embed_by
from .senses import find_senses as find_senses
from .senses import join_usages as join_usages
from .senses import name_by_substitutes as name_by_substitutes
from .senses import senses_in_corpus as senses_in_corpus
from .sharpen import SharpenedModel as SharpenedModel
from .sharpen import sharpen_model as sharpen_model
from .sharpen import transform_states as transform_states
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
from .wsd import SensePrediction as SensePrediction
from .wsd import WsdOptions as WsdOptions
from .wsd import disambiguate as disambiguate
from .wsd import disambiguate_text as disambiguate_text
from .wsd import train_senses as train_senses

__all__ = [
    "AlignOptions",
    "AlignedModel",
    "Anchors",
    "ApproximateIndex",
    "ChangeOptions",
    "Changes",
    "Concordance",
    "ConcordanceLine",
    "ContextWord",
    "Explainer",
    "Explanation",
    "Index",
    "IndexJob",
    "LabeledPairs",
    "LabeledSentences",
    "LanceIndex",
    "LayerProbe",
    "LayerScores",
    "Nearest",
    "Neighbor",
    "Neighbors",
    "PairJudgments",
    "PairSimilarities",
    "PeriodChange",
    "Precision",
    "ProbeResults",
    "Sense",
    "SenseCentroids",
    "SensePrediction",
    "SenseScore",
    "SenseSentence",
    "Senses",
    "SharpenedModel",
    "Substitute",
    "Substituter",
    "Substitutes",
    "Usage",
    "Usages",
    "VectorOptions",
    "WordChange",
    "WordNet",
    "WordPair",
    "WsdOptions",
    "align_anchors",
    "align_models",
    "apply_matrices",
    "arrange_usages",
    "best_threshold",
    "build_concordance",
    "build_index",
    "change_in_corpora",
    "change_in_uses",
    "compare_pairs",
    "compute_anchors",
    "disambiguate",
    "disambiguate_text",
    "embed_by",
    "embed_substitutes",
    "embed_usages",
    "entry_key",
    "find_marked_usage",
    "find_neighbors",
    "find_senses",
    "find_substitutes",
    "find_usages",
    "find_wic_files",
    "join_usages",
    "match_width",
    "measure_change",
    "name_by_substitutes",
    "nearest_by_csls",
    "probe_layers",
    "read_dictionary",
    "read_labels",
    "read_matrices",
    "read_pairs",
    "read_sense_corpus",
    "read_uses",
    "respell",
    "score_senses",
    "senses_in_corpus",
    "sharpen_model",
    "train_senses",
    "transform_states",
]

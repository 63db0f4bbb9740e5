from .evaluate import Perplexity as Perplexity
from .evaluate import StartPerplexity as StartPerplexity
from .evaluate import perplexity as perplexity
from .expectations import Expectations as Expectations
from .expectations import ExpectedWord as ExpectedWord
from .expectations import predict_expectations as predict_expectations
from .minimal_pairs import MinimalPair as MinimalPair
from .minimal_pairs import MinimalPairScores as MinimalPairScores
from .minimal_pairs import count_right as count_right
from .minimal_pairs import read_minimal_pairs as read_minimal_pairs
from .minimal_pairs import score_minimal_pairs as score_minimal_pairs
from .scores import Means as Means
from .scores import SentenceScores as SentenceScores
from .scores import score_sentences as score_sentences

__all__ = [
    "Expectations",
    "ExpectedWord",
    "Means",
    "MinimalPair",
    "MinimalPairScores",
    "Perplexity",
    "SentenceScores",
    "StartPerplexity",
    "count_right",
    "perplexity",
    "predict_expectations",
    "read_minimal_pairs",
    "score_minimal_pairs",
    "score_sentences",
]

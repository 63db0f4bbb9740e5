from .evaluate import Perplexity as Perplexity
from .evaluate import StartPerplexity as StartPerplexity
from .evaluate import perplexity as perplexity
from .expectations import Expectations as Expectations
from .expectations import ExpectedWord as ExpectedWord
from .expectations import predict_expectations as predict_expectations
from .scores import Means as Means
from .scores import SentenceScores as SentenceScores
from .scores import score_sentences as score_sentences

__all__ = [
    "Expectations",
    "ExpectedWord",
    "Means",
    "Perplexity",
    "SentenceScores",
    "StartPerplexity",
    "perplexity",
    "predict_expectations",
    "score_sentences",
]

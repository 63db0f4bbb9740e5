from .evaluate import Perplexity as Perplexity
from .evaluate import StartPerplexity as StartPerplexity
from .evaluate import perplexity as perplexity
from .scores import Means as Means
from .scores import SentenceScores as SentenceScores
from .scores import score_sentences as score_sentences

__all__ = ["Means", "Perplexity", "SentenceScores", "StartPerplexity", "perplexity", "score_sentences"]

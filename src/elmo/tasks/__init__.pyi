from .features.layer import Features as Features
from .features.static import StaticVectors as StaticVectors
from .features.static import read_static as read_static
from .features.store import FeatureCache as FeatureCache
from .features.store import FeatureStore as FeatureStore
from .features.transformers import TransformerEncoder as TransformerEncoder
from .fit import Epoch as Epoch
from .fit import FitOptions as FitOptions
from .kinds.answers import Answers as Answers
from .kinds.answers import AnswersOptions as AnswersOptions
from .kinds.classification import Classification as Classification
from .kinds.classification import ClassificationOptions as ClassificationOptions
from .kinds.coreference import Coreference as Coreference
from .kinds.coreference import CoreferenceOptions as CoreferenceOptions
from .kinds.entailment import Entailment as Entailment
from .kinds.entailment import EntailmentOptions as EntailmentOptions
from .kinds.registry import ExampleSet as ExampleSet
from .kinds.registry import read_examples as read_examples
from .kinds.roles import Roles as Roles
from .kinds.roles import RolesOptions as RolesOptions
from .kinds.similarity import Similarity as Similarity
from .kinds.similarity import SimilarityOptions as SimilarityOptions
from .kinds.tagging import Tagging as Tagging
from .kinds.tagging import TaggingOptions as TaggingOptions
from .kinds.translation import Translation as Translation
from .kinds.translation import TranslationOptions as TranslationOptions
from .model import TaskModel as TaskModel
from .output import write_predictions as write_predictions
from .run import Evaluation as Evaluation
from .run import Predictions as Predictions
from .run import ReadingOptions as ReadingOptions
from .run import evaluate as evaluate
from .run import load as load
from .run import predict as predict
from .run import train as train

__all__ = [
    "Answers",
    "AnswersOptions",
    "Classification",
    "ClassificationOptions",
    "Coreference",
    "CoreferenceOptions",
    "Entailment",
    "EntailmentOptions",
    "Epoch",
    "Evaluation",
    "ExampleSet",
    "FeatureCache",
    "FeatureStore",
    "Features",
    "FitOptions",
    "Predictions",
    "ReadingOptions",
    "Roles",
    "RolesOptions",
    "Similarity",
    "SimilarityOptions",
    "StaticVectors",
    "Tagging",
    "TaggingOptions",
    "TaskModel",
    "TransformerEncoder",
    "Translation",
    "TranslationOptions",
    "evaluate",
    "load",
    "predict",
    "read_examples",
    "read_static",
    "train",
    "write_predictions",
]

from .assessment import ModelAssessment as ModelAssessment
from .assessment import assess_model as assess_model
from .checkpoint import Checkpoints as Checkpoints
from .corpus import Corpus as Corpus
from .corpus import TypeIds as TypeIds
from .corpus_builder import build_corpus as build_corpus
from .evaluation import HeldoutPerplexity as HeldoutPerplexity
from .evaluation import evaluate as evaluate
from .log import LogEntry as LogEntry
from .log import TensorBoard as TensorBoard
from .log import TrainingLog as TrainingLog
from .log import read_log as read_log
from .loop import StepReport as StepReport
from .loop import Trainer as Trainer
from .loop import TrainingProgress as TrainingProgress
from .objective import BiLmObjective as BiLmObjective
from .objective import Losses as Losses
from .objective import StepRandom as StepRandom
from .options import PRESETS as PRESETS
from .options import CorpusOptions as CorpusOptions
from .options import DropoutOptions as DropoutOptions
from .options import ModelShape as ModelShape
from .options import OptimizerOptions as OptimizerOptions
from .options import TrainOptions as TrainOptions
from .read_text import BuildProgress as BuildProgress
from .run import resume_bilm as resume_bilm
from .run import train_bilm as train_bilm
from .windows import Window as Window
from .windows import Windows as Windows

__all__ = [
    "PRESETS",
    "BiLmObjective",
    "BuildProgress",
    "Checkpoints",
    "Corpus",
    "CorpusOptions",
    "DropoutOptions",
    "HeldoutPerplexity",
    "LogEntry",
    "Losses",
    "ModelAssessment",
    "ModelShape",
    "OptimizerOptions",
    "StepRandom",
    "StepReport",
    "TensorBoard",
    "TrainOptions",
    "Trainer",
    "TrainingLog",
    "TrainingProgress",
    "TypeIds",
    "Window",
    "Windows",
    "assess_model",
    "build_corpus",
    "evaluate",
    "read_log",
    "resume_bilm",
    "train_bilm",
]

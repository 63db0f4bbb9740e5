from .estimate import JobEstimate as JobEstimate
from .estimate import MachineEstimate as MachineEstimate
from .estimate import estimate_job as estimate_job
from .plan import EmbedJob as EmbedJob
from .plan import JobPlan as JobPlan
from .plan import JobSummary as JobSummary
from .plan import Progress as Progress
from .plan import plan_corpus as plan_corpus
from .reader import read_embeddings as read_embeddings
from .run import embed_corpus as embed_corpus
from .tables import TableJob as TableJob
from .tables import embed_table as embed_table

__all__ = [
    "EmbedJob",
    "JobEstimate",
    "JobPlan",
    "JobSummary",
    "MachineEstimate",
    "Progress",
    "TableJob",
    "embed_corpus",
    "embed_table",
    "estimate_job",
    "plan_corpus",
    "read_embeddings",
]

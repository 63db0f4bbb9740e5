from .collect import RunReport as RunReport
from .collect import collect_evidence as collect_evidence
from .plan import EvidencePlan as EvidencePlan
from .plan import TaskPlan as TaskPlan
from .plan import read_plan as read_plan
from .runs import EvidenceRun as EvidenceRun
from .runs import RunResult as RunResult
from .tables import Evidence as Evidence
from .tables import format_evidence as format_evidence

__all__ = [
    "Evidence",
    "EvidencePlan",
    "EvidenceRun",
    "RunReport",
    "RunResult",
    "TaskPlan",
    "collect_evidence",
    "format_evidence",
    "read_plan",
]

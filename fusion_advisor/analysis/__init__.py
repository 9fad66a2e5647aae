"""Which ops can legally be one kernel, what that would save, and whether it is worth it.

Pure functions from records to records: :func:`analyze` does all of it for one capture.
"""

from fusion_advisor.analysis import textbook
from fusion_advisor.analysis.chains import find_candidates, removable_launches, why_not
from fusion_advisor.analysis.cost import CostModel, estimate
from fusion_advisor.analysis.findings import find_findings, threshold
from fusion_advisor.analysis.ignoring import mark_ignored
from fusion_advisor.analysis.legality import BLOCKER_CODES
from fusion_advisor.analysis.pipeline import Analysis, AnalysisOptions, analyze
from fusion_advisor.analysis.summary import ratios
from fusion_advisor.analysis.traffic import TrafficModel, op_bytes, traffic

__all__ = [
    "BLOCKER_CODES",
    "Analysis",
    "AnalysisOptions",
    "CostModel",
    "TrafficModel",
    "analyze",
    "estimate",
    "find_candidates",
    "find_findings",
    "mark_ignored",
    "op_bytes",
    "ratios",
    "removable_launches",
    "textbook",
    "threshold",
    "traffic",
    "why_not",
]

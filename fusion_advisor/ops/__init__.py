"""The op table: the one place where an op's kind, recipe, work and rounding are known."""

from fusion_advisor.ops.kinds import classify, functional_name, is_inplace

__all__ = ["classify", "functional_name", "is_inplace"]

"""Every error that is ours: one class per stage, each message says what to do next."""

from __future__ import annotations


class FusionAdvisorError(Exception):
    """Base of all errors raised on purpose by Fusion Advisor."""


class CaptureError(FusionAdvisorError):
    """The code could not be recorded, or its recording could not be replayed."""


class AnalysisError(FusionAdvisorError):
    """A recording is inconsistent and cannot be analysed."""


class UnsupportedOpError(FusionAdvisorError):
    """An op, dtype or layout that no kernel is generated for; the message names it."""


class CodegenError(FusionAdvisorError):
    """A fused program failed its checker, or no text could be made from it."""


class ValidationError(FusionAdvisorError):
    """A kernel failed validation, or validation could not run."""


class FixError(FusionAdvisorError):
    """A fix cannot be applied or undone; nothing was changed."""


class ReportError(FusionAdvisorError):
    """A report cannot be read or written; existing files were left alone."""


class UsageError(FusionAdvisorError):
    """A magic, command or function was called with something it does not take."""


class MissingDependencyError(FusionAdvisorError):
    """An optional part is not installed; the message holds the command that installs it."""

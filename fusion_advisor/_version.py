"""The package's version, read by the build and by reports."""

__version__ = "0.1.0"

"""The version of the distribution, and what the sender calls itself on the wire."""

__version__ = "0.2.0"

USER_AGENT = f"pushkit/{__version__}"

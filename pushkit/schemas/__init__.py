"""Data that declares a schema of the agent's card: whether it fits. The extra `schemas`."""

from pushkit.schemas.structured_data import (
    CardSchemas,
    DataVerdict,
    Fit,
    check_structured_data,
    check_structured_data_apart,
    check_structured_input,
)

__all__ = [
    "CardSchemas",
    "DataVerdict",
    "Fit",
    "check_structured_data",
    "check_structured_data_apart",
    "check_structured_input",
]

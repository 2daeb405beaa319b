"""Checks data parts by the schemas that an agent's card declares. Needs the extra `schemas`."""

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

"""A black-box test kit for receivers: it signs as a pushkit sender does, and checks promises.

It needs no knowledge of how a receiver is built: it posts, counts callbacks, and restarts.
"""

from receiver.diagnosis.agent import Draft, SigningAgent
from receiver.diagnosis.checks import CHECKS, Finding, check_receiver
from receiver.diagnosis.subject import Answer, ReceiverUnderTest

__all__ = [
    "CHECKS",
    "Answer",
    "Draft",
    "Finding",
    "ReceiverUnderTest",
    "SigningAgent",
    "check_receiver",
]

"""Forwards: callbacks that hand a notification to something outside this program."""

from receiver.forwards.command import CommandForward
from receiver.forwards.forward import Forward, ForwardFailedError
from receiver.forwards.http import HttpForward
from receiver.forwards.stream import StreamForward

__all__ = ["CommandForward", "Forward", "ForwardFailedError", "HttpForward", "StreamForward"]

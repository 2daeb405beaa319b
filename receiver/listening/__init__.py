"""`listen`: a receiver in the terminal, for development, that shows each request and its answer.

The answers are those of the receiver; nothing in this package decides about a request.
"""

"""`listen`: a receiver in the terminal, for development, that shows what it does with each request.

The answers are the receiver's own; nothing here decides.
"""

"""Diagnosis: what a receiver, a sender, the way between them or one request does, step by step."""

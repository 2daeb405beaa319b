"""Metrics, health and traces for operators."""

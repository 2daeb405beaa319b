"""Typed events of both sides, and their listeners.

Metrics, logs, alerts and `on_event` are listeners. An event without a listener is not created:

    if self._events.wants(DEBUG):
        self._events.emit(Enqueued(...))
"""

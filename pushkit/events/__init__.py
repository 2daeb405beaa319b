"""What happens, told once: typed events of both sides, and who listens to them.

Metrics, logs, traces and `on_event` are listeners. Where nobody listens, no event is made:

    if self._events.wants(DEBUG):
        self._events.emit(Enqueued(...))
"""

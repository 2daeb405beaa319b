"""A gateway in front of an agent, which gives it durable, signed push notifications.

`options.py` (what an operator says), `calls.py` (which calls of A2A a request makes, and those of
the gateway itself), `upstream.py` (the agent), `events.py` (streams of server-sent events),
`card.py` (the agent's card, as the gateway serves it), `identity.py` (who the caller is), `view.py`
(a task, as digests), `watcher.py` (the tasks that are watched), `proxy.py` (what is passed on, and
what is not), `service.py` (all of it, served).
"""

"""a2a-sdk 0.2.12 to 1.x: what replaces its push-notification sender and its config store.

    push = PushSender(issuer="https://agent.example.com", keys="keys.json", database="outbox.db")
    a2a = A2AIntegration(push, task_store=task_store)
    handler = DefaultRequestHandler(agent_executor=..., agent_card=card, **a2a.handler_arguments)
    app = Starlette(routes=[*a2a.routes, *agent_routes], lifespan=a2a.lifespan)

The adapter is that of the installed a2a-sdk: `v1`, or `v0_3` for the releases before 1.0.
"""

from pushkit.integrations.a2a_sdk.integration import A2AIntegration, adapter

PushkitConfigStore = adapter.PushkitConfigStore
PushkitNotificationSender = adapter.PushkitNotificationSender

__all__ = ["A2AIntegration", "PushkitConfigStore", "PushkitNotificationSender"]

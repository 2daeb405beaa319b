"""a2a-sdk 0.2.12 to 1.x: what replaces its push-notification sender and its config store.

    push = PushSender(issuer="https://agent.example.com", keys="keys.json", database="outbox.db")
    notifications = PushkitNotificationSender(push, task_store=task_store)
    handler = DefaultRequestHandler(
        agent_executor=..., task_store=task_store, agent_card=card,
        push_config_store=PushkitConfigStore(push), push_sender=notifications,
    )

and around the application's lifetime: `async with push, notifications:`.

The adapter is that of the installed a2a-sdk: `v1`, or `v0_3` for the releases before 1.0.
"""

from pushkit.integrations.a2a_sdk.installed import PushkitConfigStore, PushkitNotificationSender

__all__ = ["PushkitConfigStore", "PushkitNotificationSender"]

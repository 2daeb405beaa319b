"""The A2A methods with which clients register push configs, for agents not built on a2a-sdk."""

from pushkit.integrations.push_config_api.asgi import PushConfigAsgi, push_config_app
from pushkit.integrations.push_config_api.configs import Caller, TaskCheck, TaskOf
from pushkit.integrations.push_config_api.http import PushConfigApi

__all__ = ["Caller", "PushConfigApi", "PushConfigAsgi", "TaskCheck", "TaskOf", "push_config_app"]

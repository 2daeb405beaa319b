"""The A2A wire formats: reading every version into neutral updates, and writing them.

Names are imported when first used, so that importing a state or a version loads no codec.
"""

from typing import TYPE_CHECKING

from pushkit.lazy import names_on_demand

if TYPE_CHECKING:
    from pushkit.a2a.codec import (  # noqa: I001 - as in `pushkit`
        SNAPSHOT_VERSIONS as SNAPSHOT_VERSIONS,
        decode_update as decode_update,
        encode_update as encode_update,
        parse_update as parse_update,
        push_body as push_body,
    )
    from pushkit.a2a.push_config import (
        Authentication as Authentication,
        PushConfig as PushConfig,
        format_push_config as format_push_config,
        parse_inline_config as parse_inline_config,
        parse_push_config as parse_push_config,
    )
    from pushkit.a2a.updates import (
        AnyUpdate as AnyUpdate,
        Artifact as Artifact,
        ArtifactUpdate as ArtifactUpdate,
        DataPart as DataPart,
        Message as Message,
        MessageUpdate as MessageUpdate,
        NativeUpdate as NativeUpdate,
        Part as Part,
        RawPart as RawPart,
        Role as Role,
        StatusUpdate as StatusUpdate,
        Task as Task,
        TaskSnapshot as TaskSnapshot,
        TaskState as TaskState,
        TaskStatus as TaskStatus,
        TaskUpdate as TaskUpdate,
        TextPart as TextPart,
        UnknownPart as UnknownPart,
        UnknownUpdate as UnknownUpdate,
        UpdateKind as UpdateKind,
        UrlPart as UrlPart,
        WireVersion as WireVersion,
    )
else:
    __all__, __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "pushkit.a2a.codec": (
                "SNAPSHOT_VERSIONS decode_update encode_update parse_update push_body"
            ),
            "pushkit.a2a.push_config": (
                "Authentication PushConfig format_push_config parse_inline_config parse_push_config"
            ),
            "pushkit.a2a.updates": (
                "AnyUpdate Artifact ArtifactUpdate DataPart Message MessageUpdate NativeUpdate Part"
                " RawPart Role StatusUpdate Task TaskSnapshot TaskState TaskStatus TaskUpdate"
                " TextPart UnknownPart UnknownUpdate UpdateKind UrlPart WireVersion"
            ),
        },
    )

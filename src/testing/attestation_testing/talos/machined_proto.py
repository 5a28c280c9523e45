"""The shapes of machined's API that an agent meets, as descriptors: what protoc would make of the public proto.

siderolabs/talos, api/machine/machine.proto and api/common/common.proto: names, numbers and types of the members that
ApplyConfiguration, Reset and Version have; nothing of the files themselves.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_Message = descriptor_pb2.DescriptorProto
_Enum = descriptor_pb2.EnumDescriptorProto
_Value = descriptor_pb2.EnumValueDescriptorProto

SERVICE: Final = "machine.MachineService"
MODES: Final = ("REBOOT", "AUTO", "NO_REBOOT", "STAGED", "TRY")
WIPE_MODES: Final = ("ALL", "SYSTEM_DISK", "USER_DISKS")


def _one(name: str, number: int, kind: int) -> Any:
    return _F(name=name, number=number, type=kind, label=_F.LABEL_OPTIONAL)


def _of(name: str, number: int, kind: str, *, many: bool = False) -> Any:
    label = _F.LABEL_REPEATED if many else _F.LABEL_OPTIONAL
    return _F(name=name, number=number, type=_F.TYPE_MESSAGE, type_name=f".{kind}", label=label)


def _texts(name: str, number: int) -> Any:
    return _F(name=name, number=number, type=_F.TYPE_STRING, label=_F.LABEL_REPEATED)


def _chosen(name: str, number: int, kind: str) -> Any:
    return _F(name=name, number=number, type=_F.TYPE_ENUM, type_name=f".{kind}", label=_F.LABEL_OPTIONAL)


def _words(name: str, words: tuple[str, ...]) -> Any:
    return _Enum(name=name, value=[_Value(name=word, number=number) for number, word in enumerate(words)])


_METADATA = _of("metadata", 1, "common.Metadata")
_COMMON = descriptor_pb2.FileDescriptorProto(
    name="common/common.proto",
    package="common",
    syntax="proto3",
    message_type=[
        _Message(
            name="Status",
            field=[_one("code", 1, _F.TYPE_INT32), _one("message", 2, _F.TYPE_STRING)],
        ),
        _Message(
            name="Metadata",
            field=[
                _one("hostname", 1, _F.TYPE_STRING),
                _one("error", 2, _F.TYPE_STRING),
                _of("status", 3, "common.Status"),
            ],
        ),
    ],
)
_MACHINE = descriptor_pb2.FileDescriptorProto(
    name="machine/machine.proto",
    package="machine",
    syntax="proto3",
    dependency=["common/common.proto", "google/protobuf/duration.proto"],
    message_type=[
        _Message(
            name="ApplyConfigurationRequest",
            enum_type=[_words("Mode", MODES)],
            field=[
                _one("data", 1, _F.TYPE_BYTES),
                _chosen("mode", 4, "machine.ApplyConfigurationRequest.Mode"),
                _one("dry_run", 5, _F.TYPE_BOOL),
                _of("try_mode_timeout", 6, "google.protobuf.Duration"),
            ],
        ),
        _Message(
            name="ApplyConfiguration",
            field=[
                _METADATA,
                _texts("warnings", 2),
                _chosen("mode", 3, "machine.ApplyConfigurationRequest.Mode"),
                _one("mode_details", 4, _F.TYPE_STRING),
            ],
        ),
        _Message(
            name="ApplyConfigurationResponse",
            field=[_of("messages", 1, "machine.ApplyConfiguration", many=True)],
        ),
        _Message(
            name="ResetPartitionSpec",
            field=[_one("label", 1, _F.TYPE_STRING), _one("wipe", 2, _F.TYPE_BOOL)],
        ),
        _Message(
            name="ResetRequest",
            enum_type=[_words("WipeMode", WIPE_MODES)],
            field=[
                _one("graceful", 1, _F.TYPE_BOOL),
                _one("reboot", 2, _F.TYPE_BOOL),
                _of("system_partitions_to_wipe", 3, "machine.ResetPartitionSpec", many=True),
                _texts("user_disks_to_wipe", 4),
                _chosen("mode", 5, "machine.ResetRequest.WipeMode"),
            ],
        ),
        _Message(name="Reset", field=[_METADATA, _one("actor_id", 2, _F.TYPE_STRING)]),
        _Message(name="ResetResponse", field=[_of("messages", 1, "machine.Reset", many=True)]),
        _Message(
            name="VersionInfo",
            field=[
                _one(name, number, _F.TYPE_STRING)
                for number, name in enumerate(("tag", "sha", "built", "go_version", "os", "arch"), 1)
            ],
        ),
        _Message(
            name="PlatformInfo", field=[_one("name", 1, _F.TYPE_STRING), _one("mode", 2, _F.TYPE_STRING)]
        ),
        _Message(name="FeaturesInfo", field=[_one("rbac", 1, _F.TYPE_BOOL)]),
        _Message(
            name="Version",
            field=[
                _METADATA,
                _of("version", 2, "machine.VersionInfo"),
                _of("platform", 3, "machine.PlatformInfo"),
                _of("features", 4, "machine.FeaturesInfo"),
            ],
        ),
        _Message(name="VersionResponse", field=[_of("messages", 1, "machine.Version", many=True)]),
    ],
)


def _classes() -> dict[str, Any]:
    """Return the classes of Google's protobuf, by the names of their messages."""
    from google.protobuf import duration_pb2

    pool = descriptor_pool.DescriptorPool()
    duration = descriptor_pb2.FileDescriptorProto()
    duration_pb2.DESCRIPTOR.CopyToProto(duration)
    for file in (duration, _COMMON, _MACHINE):
        pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"machine.{message.name}"))
        for message in _MACHINE.message_type
    }


MESSAGES: Final = _classes()
"""`ResetRequest` and so on."""

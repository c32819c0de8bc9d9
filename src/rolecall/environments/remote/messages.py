"""Makes the messages and methods of MRLM's gRPC service, package `mrlm` of its mrlm.proto.

Field numbers are those of the proto: 1, 2, 3 in the order in which the fields stand here.
"""

from __future__ import annotations

from typing import Any

from rolecall.core.optional import needs

with needs("protobuf", extra="remote"):
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "mrlm.EnvironmentService"
MESSAGE_BYTES = 100 << 20  # most of a message, in MRLM's clients and servers too
METHODS = {  # name -> request, response
    "Reset": ("ResetRequest", "ResetResponse"),
    "Step": ("StepRequest", "StepResponse"),
    "BatchStep": ("BatchStepRequest", "BatchStepResponse"),
    "StreamStep": ("StepRequest", "StepResponse"),
    "ListEnvironments": ("ListEnvironmentsRequest", "ListEnvironmentsResponse"),
    "HealthCheck": ("HealthCheckRequest", "HealthCheckResponse"),
}
# Name -> type. A list holds the type of a repeated field, a dict those of a map's keys and values.
FIELDS: dict[str, dict[str, Any]] = {
    "MessageProto": {"role": "string", "content": "string", "metadata": {"string": "string"}},
    "ObservationProto": {
        "messages": ["MessageProto"],
        "state": {"string": "string"},
        "done": "bool",
        "info": {"string": "string"},
    },
    "RewardProto": {
        "value": "double",
        "components": {"string": "double"},
        "info": {"string": "string"},
    },
    "ResetRequest": {"environment_id": "string", "config": {"string": "string"}},
    "ResetResponse": {
        "observation": "ObservationProto",
        "session_id": "string",
        "status": "string",
    },
    "StepRequest": {"session_id": "string", "action": "MessageProto"},
    "StepResponse": {
        "observation": "ObservationProto",
        "reward": "RewardProto",
        "status": "string",
    },
    "BatchStepRequest": {"requests": ["StepRequest"]},
    "BatchStepResponse": {"responses": ["StepResponse"]},
    "HealthCheckRequest": {"service": "string"},
    "HealthCheckResponse": {"status": "string", "info": {"string": "string"}, "timestamp": "int64"},
    "EnvironmentInfo": {
        "environment_id": "string",
        "environment_type": "string",
        "mode": "string",
        "metadata": {"string": "string"},
    },
    "ListEnvironmentsRequest": {"environment_type": "string"},
    "ListEnvironmentsResponse": {"environments": ["EnvironmentInfo"]},
}


def _make_classes() -> dict[str, Any]:
    """Return the message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="mrlm.proto", package="mrlm", syntax="proto3")
    for name, fields in FIELDS.items():
        _describe_message(file.message_type.add(name=name), fields)
    pool = descriptor_pool.DescriptorPool()  # of its own: MRLM's package may be imported as well
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mrlm.{name}"))
        for name in FIELDS
    }


def _describe_message(message: Any, fields: dict[str, Any]) -> None:
    for number, (name, kind) in enumerate(fields.items(), start=1):
        field = message.field.add(name=name, number=number)
        field.label = (
            field.LABEL_REPEATED if isinstance(kind, list | dict) else field.LABEL_OPTIONAL
        )
        if isinstance(kind, dict):
            [(key, value)] = kind.items()
            entry = message.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            _describe_message(entry, {"key": key, "value": value})
            field.type, field.type_name = field.TYPE_MESSAGE, f".mrlm.{message.name}.{entry.name}"
            continue
        [kind] = kind if isinstance(kind, list) else [kind]
        if kind in FIELDS:
            field.type, field.type_name = field.TYPE_MESSAGE, f".mrlm.{kind}"
        else:
            field.type = getattr(field, f"TYPE_{kind.upper()}")


CLASSES = _make_classes()

"""One release and the next speak to each other: nothing that was said before is said otherwise, and what is new is optional."""

from collections.abc import Iterator

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from twostep.proto import handoff_pb2, node_pb2, serving_pb2
from twostep.tests.proto.skew import RELEASED, as_released, last_release, with_additions

FILES = (node_pb2, handoff_pb2, serving_pb2)


def messages(pool: descriptor_pool.DescriptorPool) -> Iterator[Descriptor]:
    for module in FILES:
        yield from pool.FindFileByName(module.DESCRIPTOR.name).message_types_by_name.values()


def on_the_wire(field: FieldDescriptor) -> tuple[object, ...]:
    """Return what must not change about a field: its kind, whether there are several, and the message inside it."""
    inside = field.message_type or field.enum_type
    return field.name, field.type, field.is_repeated, inside.full_name if inside else None


def test_every_field_of_the_last_release_is_still_what_it_was() -> None:
    now = descriptor_pool.Default()
    for released in messages(last_release()):
        current = now.FindMessageTypeByName(released.full_name)
        for field in released.fields:
            known = current.fields_by_number.get(field.number)
            assert known, f"{field.full_name} is gone"
            assert on_the_wire(known) == on_the_wire(field)
        for kind in released.enum_types:
            values = current.enum_types_by_name[kind.name].values_by_number
            assert all(values[value.number].name == value.name for value in kind.values)


def test_every_method_of_the_last_release_is_still_there() -> None:
    now, released = descriptor_pool.Default(), last_release()
    for module in FILES:
        for service in released.FindFileByName(module.DESCRIPTOR.name).services_by_name.values():
            current = now.FindServiceByName(service.full_name)
            for method in service.methods:
                known = current.methods_by_name[method.name]
                assert known.input_type.full_name == method.input_type.full_name
                assert known.output_type.full_name == method.output_type.full_name
                assert known.server_streaming == method.server_streaming


def test_there_is_a_release_to_compare_with() -> None:
    assert [path.stem for path in RELEASED.glob("*.binpb")] != []
    assert len(list(messages(last_release()))) > 30


@pytest.mark.parametrize("rewrite", [as_released, with_additions])
def test_a_message_of_another_version_says_what_both_know(rewrite: object) -> None:
    kind = last_release().FindMessageTypeByName("twostep.node.v1.NodeDescription")
    said = node_pb2.NodeDescription(role="decode", ready=True, node=node_pb2.NodeRef(id="d", incarnation=7))
    heard = node_pb2.NodeDescription.FromString(rewrite(kind, said.SerializeToString()))  # type: ignore[operator]
    assert (heard.role, heard.ready, heard.node) == (said.role, said.ready, said.node)

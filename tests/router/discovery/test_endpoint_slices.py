"""What a set of EndpointSlices says about the nodes."""

from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.endpoint_slices import EndpointSlices
from twostep.router.discovery.member import Member
from twostep.tests.router.discovery.slices import endpoint, endpoint_slice


def slices(*given: dict[str, object]) -> EndpointSlices:
    known = EndpointSlices(KubernetesDiscovery())
    known.replace(given)
    return known


def test_a_member_is_a_pod_by_uid_at_the_port_called_grpc_where_its_machine_is() -> None:
    known = slices(endpoint_slice("p", "prefill", [endpoint("10.0.0.1", "u1", zone="a", node="m1")]))
    [member] = known.members()
    assert member == Member("prefill", "10.0.0.1:7000", id="u1")
    assert (member.zone, member.host, member.is_leaving) == ("a", "m1", False)


def test_a_pod_that_was_told_to_go_is_leaving_and_one_that_is_not_ready_is_not() -> None:
    leaving = endpoint("10.0.0.1", "u1", terminating=True)
    unready = endpoint("10.0.0.2", "u2")
    unready["conditions"] = {"ready": False, "serving": False, "terminating": False}
    known = slices(endpoint_slice("d", "decode", [leaving, unready]))
    assert [member.is_leaving for member in known.members()] == [True, False]


def test_conditions_zone_and_machine_may_be_missing() -> None:
    known = slices(endpoint_slice("d", "decode", [{"addresses": ["10.0.0.1"]}]))
    assert known.members() == [Member("decode", "10.0.0.1:7000")]


def test_an_ipv6_address_is_put_in_brackets() -> None:
    known = slices(endpoint_slice("d", "decode", [endpoint("fd00::1", "u1")]))
    assert [member.address for member in known.members()] == ["[fd00::1]:7000"]


def test_a_pod_in_two_slices_is_one_member_and_stays_when_one_of_them_says_so() -> None:
    old = endpoint_slice("a", "decode", [endpoint("10.0.0.1", "u1", terminating=True)])
    new = endpoint_slice("b", "decode", [endpoint("10.0.0.1", "u1")])
    for order in ((old, new), (new, old)):
        assert [(member.id, member.is_leaving) for member in slices(*order).members()] == [("u1", False)]


def test_slices_without_a_role_a_port_or_endpoints_name_nobody() -> None:
    known = slices(
        endpoint_slice("router", "router", [endpoint("10.0.0.1", "u1")]),
        endpoint_slice("headless", "decode", [endpoint("10.0.0.2", "u2")], port=None),
        endpoint_slice("empty", "decode", None),
    )
    assert known.members() == []


def test_events_change_one_slice_and_leave_the_others() -> None:
    known = slices(
        endpoint_slice("p", "prefill", [endpoint("10.0.0.1", "u1")]),
        endpoint_slice("d", "decode", [endpoint("10.0.0.2", "u2")]),
    )
    known.apply("MODIFIED", endpoint_slice("p", "prefill", [endpoint("10.0.0.3", "u3")]))
    assert [member.id for member in known.members()] == ["u2", "u3"]
    known.apply("DELETED", endpoint_slice("d", "decode", None))
    known.apply("ADDED", endpoint_slice("e", "decode", [endpoint("10.0.0.4", "u4")]))
    assert [member.id for member in known.members()] == ["u4", "u3"]

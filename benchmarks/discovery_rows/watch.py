"""The router's watch alone, in turn with the one that the Kubernetes client brings along."""

import asyncio

from kubernetes.aio import client, config, watch

from twostep.benchmarks.discovery_rows.many_nodes import Ages, Cost, cost_of, many_nodes
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.kubernetes_api import open_api
from twostep.router.discovery.kubernetes_watch import KubernetesWatch

CPU = "the watch alone, CPU"
AGE = "the watch alone, age of a change, p99"
SETTLE_S = 2.0


async def measure(effort: Effort) -> Outcomes:
    seconds = effort.pick(8, 3)
    pairs = [(await _ours(seconds), await _peers(seconds)) for _ in range(effort.rounds)]
    return {
        CPU: Measured(tuple(ours.cpu_percent for ours, _ in pairs), tuple(peer.cpu_percent for _, peer in pairs)),
        AGE: Measured(tuple(ours.age_ms(99) for ours, _ in pairs), tuple(peer.age_ms(99) for _, peer in pairs)),
    }


async def _ours(seconds: float) -> Cost:
    ages = Ages()

    async def follow(discovery: KubernetesDiscovery) -> None:
        async for members in KubernetesWatch(discovery, open_api).changes():
            ages.note(member.id for member in members)

    async with many_nodes() as discovery:
        return await cost_of(follow(discovery), ages, settled=asyncio.sleep(SETTLE_S), seconds=seconds)


async def _peers(seconds: float) -> Cost:
    ages = Ages()

    async def follow(discovery: KubernetesDiscovery) -> None:
        settings = client.Configuration()
        await config.load_kube_config(str(discovery.kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]
        async with client.ApiClient(settings) as api, watch.Watch() as watching:  # type: ignore[no-untyped-call]
            slices = client.DiscoveryV1Api(api)
            found = await slices.list_namespaced_endpoint_slice(discovery.namespace)
            assert found.metadata
            version = found.metadata.resource_version
            events = watching.stream(slices.list_namespaced_endpoint_slice, discovery.namespace, resource_version=version)
            async for event in events:
                ages.note(endpoint.target_ref.uid for endpoint in event["object"].endpoints)

    async with many_nodes() as discovery:
        return await cost_of(follow(discovery), ages, settled=asyncio.sleep(SETTLE_S), seconds=seconds)


WATCH = Measurement((CPU, AGE), measure)

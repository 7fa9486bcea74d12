"""The cost of quotas per request, in CPU time of one thread.

    python -m tests.dataplane.quotas.quota_cost

One client that sends requests all the time, and ten thousand that take turns, each with its own
allowance, which it does not exceed.
"""

import time
from random import Random

import trio

from metaquorum.config.resolution import WorkerLayers
from metaquorum.dataplane.network.client import Client
from metaquorum.dataplane.quotas.client_quota_manager import ClientQuotas
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.quota_lookup import CLIENT_ID, EntityPart
from metaquorum.metadata.records import ClientQuotaRecord
from metaquorum.metadata.replay import replay
from metaquorum.quorum.controller.quota_changes import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from metaquorum.runtime.system import RealClock

REQUESTS = 10_000
ROUNDS = 15


def cost_us(count: int, *keys: str) -> float:
    records = [ClientQuotaRecord((EntityPart(CLIENT_ID, None),), key, 1e12) for key in keys]
    image, _ = replay(MetadataImage.empty("cost"), records)
    quotas = ClientQuotas(image, RealClock(), Random(1), WorkerLayers({}).worker_configs())
    clients = [(Client(("host", n), "PLAINTEXT"), f"client-{n}") for n in range(count)]
    clients *= REQUESTS // count
    meter = quotas.meter
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for client, client_id in clients:  # as a connection and the dispatcher do
            is_metered = meter.is_on and meter.resume(client)
            if quotas.is_on:
                quotas.answering(client, client_id, 1000)
            if is_metered:
                meter.pause(client)
        best = min(best, time.thread_time() - began)
    return best / len(clients) * 1e6


async def main() -> None:
    for count in (1, REQUESTS):
        for keys in ((), (PRODUCER_BYTE_RATE,), (PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE)):
            cost, quotas = cost_us(count, *keys), ", ".join(keys) or "no quota"
            print(f"{count:6d} clients: {cost:5.2f} us a request with {quotas}")


if __name__ == "__main__":
    trio.run(main)

"""What quotas cost a request, in CPU time of one thread.

    python -m tests.dataplane.quota_cost

Ten thousand clients take turns, each with an allowance of its own that it does not exceed.
"""

import time

import trio

from dataplane.client_quotas import ClientQuotas
from dataplane.connection import Client
from metaquorum.config_layers import WorkerLayers
from metaquorum.image import MetadataImage, replay
from metaquorum.quota_changes import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from metaquorum.quota_rules import CLIENT_ID, EntityPart
from metaquorum.records import ClientQuotaRecord
from metaquorum.runtime.real import RealClock

CLIENTS = 10_000
ROUNDS = 7


def cost_us(*keys: str) -> float:
    records = [ClientQuotaRecord((EntityPart(CLIENT_ID, None),), key, 1e12) for key in keys]
    image, _ = replay(MetadataImage.empty("cost"), records)
    quotas = ClientQuotas(image, RealClock(), WorkerLayers({}).worker_configs())
    clients = [(Client(("host", n), "PLAINTEXT"), f"client-{n}") for n in range(CLIENTS)]
    meter = quotas.meter
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for client, client_id in clients:  # as a connection and the dispatcher do
            if meter.is_on:
                meter.resume(client)
            if quotas.is_on:
                quotas.answering(client, client_id, 1000)
            if meter.is_on:
                meter.pause(client)
        best = min(best, time.thread_time() - began)
    return best / CLIENTS * 1e6


async def main() -> None:
    for keys in ((), (PRODUCER_BYTE_RATE,), (PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE)):
        print(f"{cost_us(*keys):6.2f} us a request with {', '.join(keys) or 'no quota'}")


if __name__ == "__main__":
    trio.run(main)

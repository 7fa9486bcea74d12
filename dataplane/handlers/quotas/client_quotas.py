"""AlterClientQuotas and DescribeClientQuotas."""

from collections import Counter
from collections.abc import Coroutine, Hashable, Iterator
from typing import Any, Final

import trio

from metaquorum.dataplane.scheduling.time_slices import in_pieces, pause
from metaquorum.dataplane.worker.capabilities import AsksController, HasImage
from metaquorum.dataplane.worker.context import Request
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.quota_lookup import EntityPart
from metaquorum.quorum.controller.quota_changes import (
    FilterPart,
    QuotaChange,
    QuotaFilter,
    QuotaOp,
    checked_entity,
)
from metaquorum.quorum.controller.topics import MAX_SPECS, TOO_MANY
from metaquorum.quorum.rpc.methods import CHANGE_QUOTAS, ChangeQuotas
from metaquorum.wire.messages import alter_client_quotas, describe_client_quotas
from metaquorum.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntry,
)
from metaquorum.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from metaquorum.wire.primitives.errors import ErrorCode, KafkaError

# The request has no timeout of its own. Most clients wait 30 s for the response.
CHANGE_S: Final = 25.0
# A longer filter is invalid in any case: there are three entity types, each allowed once.
MAX_COMPONENTS: Final = 10
_TWICE: Final = KafkaError(ErrorCode.INVALID_REQUEST, "Each entity must appear at most once.")
SLICE_ENTITIES: Final = 1000  # entities checked before other tasks run


async def handle_alter_client_quotas(
    worker: AsksController, request: Request, message: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    slicer, entries = worker.slicer, message.entries
    changes: dict[int, QuotaChange] = {}  # by the row of the request
    errors: list[KafkaError | None] = []
    named: Counter[Hashable] = Counter()

    try:
        if any(await in_pieces(entries, _is_too_long)):
            errors = [TOO_MANY] * len(entries)
        else:
            for row, entry in enumerate(entries):
                changes[row] = _change(entry)
                named[_entity_of(changes[row])] += 1
                errors.append(None)
                await pause()
            for row in range(len(entries)):
                if named[_entity_of(changes[row])] > 1:
                    errors[row] = _TWICE
                    del changes[row]
                await pause()
            answers = await worker.controller_client.change_each(
                CHANGE_QUOTAS,
                list(changes.values()),
                lambda part: ChangeQuotas(request.context, part, message.validate_only),
                timeout_s=CHANGE_S,
            )
            for row, error in zip(changes, answers, strict=True):
                errors[row] = error
                await pause()
        work = in_pieces(zip(entries, errors, strict=True), _altered)
        return AlterClientQuotasResponse(entries=await work)
    finally:
        slicer.discard(changes, named)


def _entity_of(change: QuotaChange) -> Hashable:
    """Return what two rows of the request have in common if they are about one entity."""
    try:
        return checked_entity(change.parts)
    except KafkaError:
        return change.parts


def _is_too_long(entry: alter_client_quotas.EntryData) -> bool:
    return max(len(entry.entity), len(entry.ops)) > MAX_SPECS


def _altered(outcome: tuple[alter_client_quotas.EntryData, KafkaError | None]) -> AlteredEntry:
    entry, error = outcome
    return AlteredEntry(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        entity=entry.entity,
    )


def _change(entry: alter_client_quotas.EntryData) -> QuotaChange:
    return QuotaChange(
        tuple([EntityPart(part.entity_type, part.entity_name) for part in entry.entity]),
        [QuotaOp(op.key, None if op.remove else op.value) for op in entry.ops],
    )


def handle_describe_client_quotas(
    worker: HasImage, request: Request, message: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | Coroutine[Any, Any, DescribeClientQuotasResponse]:
    parts = [
        FilterPart(c.entity_type, c.match_type, c.match)
        for c in message.components[:MAX_COMPONENTS]
    ]
    try:
        wanted = QuotaFilter(parts, strict=message.strict)
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    return _describe(worker.image, wanted)


async def _describe(image: MetadataImage, wanted: QuotaFilter) -> DescribeClientQuotasResponse:
    entries = []
    for number, entry in enumerate(_entries(image, wanted), 1):
        if entry is not None:
            entries.append(entry)
        if number % SLICE_ENTITIES == 0:
            await trio.lowlevel.checkpoint()
    return DescribeClientQuotasResponse(entries=entries)


def _entries(
    image: MetadataImage, wanted: QuotaFilter
) -> Iterator[describe_client_quotas.EntryData | None]:
    """Yield for each entity with quotas its entry, or None if the filter does not match."""
    for entity, quotas in image.client_quotas.in_order():
        yield (
            describe_client_quotas.EntryData(
                entity=[
                    describe_client_quotas.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.parts()
                ],
                values=[
                    describe_client_quotas.ValueData(key=key, value=value)
                    for key, value in sorted(quotas.items())
                ],
            )
            if wanted.meets(entity)
            else None
        )

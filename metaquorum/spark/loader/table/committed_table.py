"""The table in the output: reads and writes its format, plans, results and manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from metaquorum.spark.loader.errors import OutputError, RefusedError
from metaquorum.spark.loader.storage.interface import Storage
from metaquorum.spark.loader.table.json_fields import (
    NewerFormatError,
    check_format,
    check_names,
    decode,
    encode,
)
from metaquorum.spark.loader.table.layout import (
    FORMAT_FILE,
    LOADING_FOLDER,
    MANIFESTS_FOLDER,
    META_FOLDER,
    manifest_path,
    plan_path,
    report_path,
    result_index,
    result_path,
    staging_folder,
)
from metaquorum.spark.loader.table.load_plan import MAX_PLAN_BYTES, MAX_RANGES, LoadPlan
from metaquorum.spark.loader.table.manifest import (
    MAX_MANIFEST_BYTES,
    CommittedFile,
    Manifest,
    check_follows,
    check_of_manifest,
    check_of_plan,
)
from metaquorum.spark.loader.table.range_result import MAX_RESULT_BYTES, RangeResult
from metaquorum.spark.loader.table.recovery import Listing, check_is_ours, listing_of

T = TypeVar("T")

FORMAT_KIND: Final = "metaquorum table"
FORMAT: Final = 1
_FORMAT_BYTES: Final = encode({"kind": FORMAT_KIND, "format": FORMAT})
_MAX_FORMAT_BYTES: Final = 4096
MAX_REPORT_BYTES: Final = 1 << 30
MAX_COPIES: Final = 16  # at a time, in an object store


class Table:
    """Files of a table in a storage. All methods are blocking.

    They raise OutputError if the storage fails or a file is damaged.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    # Format of the folder

    def is_there(self) -> bool:
        """Return whether the output is a table of this loader.

        Raises OutputError if it has a newer format or is damaged.
        """
        try:
            data = self.storage.read(FORMAT_FILE, _MAX_FORMAT_BYTES)
        except FileNotFoundError:
            return False
        self._parsed(FORMAT_FILE, data, self._check_format)
        return True

    def open_or_make(self) -> None:
        """Open the table, or create it in an empty output.

        Creates the format file a second time, to check that the storage creates exclusively. The
        content is the same each time, so a storage that overwrites it does no harm. Raises
        OutputError if the storage does not create exclusively, or has other files.
        """
        if not self.is_there():
            check_is_ours(self.storage.names(), self.storage.url)
            try:
                self.storage.create(FORMAT_FILE, _FORMAT_BYTES)
            except FileExistsError:
                self.is_there()  # created by another driver at the same time
        try:
            self.storage.create(FORMAT_FILE, _FORMAT_BYTES)
        except FileExistsError:
            return
        raise OutputError(
            f"{self.storage.url} allows a file to be created twice, so two loads at once could "
            "both commit; use a newer version of the storage, or another output"
        )

    @staticmethod
    def _check_format(data: bytes) -> None:
        found = decode(data)
        check_format(found, FORMAT_KIND, FORMAT)
        check_names(found, "it", "kind", "format")

    def listing(self) -> Listing:
        paths = [*self.storage.list_files(META_FOLDER), *self.storage.list_files(LOADING_FOLDER)]
        return listing_of(paths)

    # Manifests

    def manifest(self, version: int) -> Manifest:
        found = self._read(manifest_path(version), MAX_MANIFEST_BYTES, Manifest.from_bytes)
        if found.version != version:
            raise self._damaged(manifest_path(version), f"its version is {found.version}")
        return found

    def newest(self, listing: Listing) -> Manifest | None:
        """Return the newest manifest, after a check against its plan and the one before it.

        Raises OutputError if they contradict each other: loads would continue at other offsets.
        """
        if not listing.newest:
            return None
        found = self.manifest(listing.newest)
        previous = self.manifest(found.version - 1) if found.version > 1 else None
        self._check_continues(previous, found)
        if found.version in listing.plans:
            plan = self.plan(found.version)
            self._judge(manifest_path(found.version), lambda: check_of_plan(found, plan))
        return found

    def _check_continues(self, previous: Manifest | None, found: Manifest) -> None:
        self._judge(manifest_path(found.version), lambda: check_follows(previous, found))

    def commit(self, manifest: Manifest) -> None:
        """Create the manifest. Raises FileExistsError if this version is already committed."""
        self.storage.create(manifest_path(manifest.version), manifest.to_bytes())

    def make_commits_durable(self) -> None:
        """Make the manifests durable; call it before acting on a manifest of a dead process."""
        self.storage.make_durable(MANIFESTS_FOLDER)

    # Plans

    def plan(self, version: int) -> LoadPlan:
        found = self._read(plan_path(version), MAX_PLAN_BYTES, LoadPlan.from_bytes)
        if found.version != version:
            raise self._damaged(plan_path(version), f"its version is {found.version}")
        return found

    def create_plan(self, plan: LoadPlan) -> None:
        """Create the plan. Raises FileExistsError if this version already has a plan."""
        if len(plan.read_plan.ranges) > MAX_RANGES:
            raise RefusedError(
                f"the load would have {len(plan.read_plan.ranges)} ranges, more than {MAX_RANGES}: "
                "use a larger --max-records-per-range, or an earlier --to"
            )
        self.storage.create(plan_path(plan.version), plan.to_bytes())

    def discard_plan(self, plan: LoadPlan) -> None:
        """Delete the plan and its staging folder, so that the load is never committed."""
        self.storage.delete(plan_path(plan.version))
        self.storage.delete_folder(staging_folder(plan.version, plan.plan_id))

    # Results

    def results(self, plan: LoadPlan) -> dict[int, RangeResult]:
        """Return the results by range index, after a check that their files exist.

        Raises OutputError if a file is missing or has another size.
        """
        staging = staging_folder(plan.version, plan.plan_id)
        sizes = self.storage.list_files(staging)
        found = {}
        for path in sorted(sizes):
            index = result_index(path)
            if index is None or index >= len(plan.read_plan.ranges):
                continue
            result = self._read(path, MAX_RESULT_BYTES, RangeResult.from_bytes)
            if result.index != index or not result.is_of(plan.read_plan.ranges[index]):
                raise self._damaged(path, "it belongs to another range")
            found[index] = result
        self._check_sizes(sizes, found.values())
        return found

    def check_files(self, plan: LoadPlan, results: Iterable[RangeResult]) -> None:
        """Raise OutputError unless the files of the results exist with their sizes."""
        sizes = self.storage.list_files(staging_folder(plan.version, plan.plan_id))
        self._check_sizes(sizes, results)

    def _check_sizes(self, sizes: Mapping[str, int], results: Iterable[RangeResult]) -> None:
        for result in results:
            for file in (result.file, result.rejected):
                if file is not None and sizes.get(file.path) != file.bytes:
                    raise OutputError(
                        f"{self.storage.url}/{file.path} is missing, or has another size than "
                        f"{file.bytes} bytes; run the load with --discard-unfinished, which reads "
                        "its ranges again"
                    )

    def result(self, staging: str, index: int) -> RangeResult | None:
        try:
            return self._read(result_path(staging, index), MAX_RESULT_BYTES, RangeResult.from_bytes)
        except FileNotFoundError:
            return None

    def write_report(self, plan: LoadPlan, results: Sequence[RangeResult]) -> str:
        """Write the report, one line for each range, and return its path for the manifest."""
        path = report_path(plan.version, plan.plan_id)
        data = b"".join(result.to_bytes() for result in results)
        try:
            self.storage.create(path, data)
        except FileExistsError:
            pass  # a driver that died before its commit wrote it, from the same results
        return path

    def report(self, manifest: Manifest) -> list[RangeResult]:
        path = manifest.report

        def parse(data: bytes) -> list[RangeResult]:
            found = [RangeResult.from_bytes(line) for line in data.splitlines()]
            check_of_manifest(found, manifest)
            return found

        return self._read(path, MAX_REPORT_BYTES, parse)

    # Committed files

    def publish(self, manifest: Manifest) -> None:
        """Move each committed file to its path, and delete the staging folder of the load.

        Raises OutputError if a staged file has another size than in the manifest.
        """
        staging = staging_folder(manifest.version, manifest.plan_id)
        sizes = self.storage.list_files(staging)
        for file in manifest.files:
            if sizes.get(file.staged, file.bytes) != file.bytes:
                raise self._damaged(
                    file.staged, f"it has {sizes[file.staged]} bytes, not {file.bytes}"
                )
        if self.storage.is_local:
            for file in manifest.files:
                self.storage.publish(file.staged, file.path)
        else:  # a copy by the store takes seconds, but no CPU time of this process
            with ThreadPoolExecutor(MAX_COPIES) as pool:
                for _ in pool.map(self._publish, manifest.files):
                    pass
        self.storage.delete_folder(staging)

    def _publish(self, file: CommittedFile) -> None:
        self.storage.publish(file.staged, file.path)

    def committed(self) -> list[tuple[Manifest, CommittedFile, str]]:
        """Return all committed data files, each with its manifest and its current path."""
        listing = self.listing()
        staged: Mapping[str, int] = {}
        found = []
        previous = None
        for version in listing.manifests:
            manifest = self.manifest(version)
            self._check_continues(previous, manifest)
            previous = manifest
            if (version, manifest.plan_id) in listing.staging:
                staged = self.storage.list_files(staging_folder(version, manifest.plan_id))
            for each in manifest.ranges:
                if each.file is not None:
                    is_staged = each.file.staged in staged
                    place = each.file.staged if is_staged else each.file.path
                    found.append((manifest, each.file, place))
        return found

    def _read(self, path: str, max_bytes: int, parse: Callable[[bytes], T]) -> T:
        return self._parsed(path, self.storage.read(path, max_bytes), parse)

    def _parsed(self, path: str, data: bytes, parse: Callable[[bytes], T]) -> T:
        return self._judge(path, lambda: parse(data))

    def _judge(self, path: str, check: Callable[[], T]) -> T:
        try:
            return check()
        except NewerFormatError as error:
            raise OutputError(f"{self.storage.url}/{path} cannot be used: {error}") from None
        except ValueError as error:
            raise self._damaged(path, str(error)) from None

    def _damaged(self, path: str, why: str) -> OutputError:
        return OutputError(
            f"{self.storage.url}/{path} cannot be used: {why}; nothing was changed. Restore the "
            "file from a backup, or load into another folder"
        )

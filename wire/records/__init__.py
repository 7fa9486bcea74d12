"""Record batches, format 2: headers, checksums, compression, the walk over records.

Imports `wire.primitives`. No I/O. Start with `batches` (headers); `record_walk` is the walk that
produce validation, compaction, dump and the client share, and `walk_form` chooses its compiled or
interpreted form.
"""

"""Record batches, format v2: headers, checksums, compression, and the parser of records.

Imports `metaquorum.wire.primitives`. No I/O. Start with `batches` (headers). `record_walk` is the
parser that produce validation, compaction, the log dump and the client share; `walk_form` chooses
its compiled or interpreted form.
"""

"""The tables, one module for each API, loaded when it is first used (see `wire.protocol.apis`)."""

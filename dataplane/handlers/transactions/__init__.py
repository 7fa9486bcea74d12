"""Handlers of transactions, for clients and between workers."""

"""One function per API: (worker, request, message) to the response message."""

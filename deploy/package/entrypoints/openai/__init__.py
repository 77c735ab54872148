"""The servers of the HTTP API."""

"""The reports of a frontend on its requests: scrapes, snapshots, traces."""

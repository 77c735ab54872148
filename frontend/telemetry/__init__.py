"""What leaves a frontend about its requests: scrapes, snapshots, traces."""

"""What a frontend counts and times."""

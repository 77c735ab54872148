"""Keys and certificates, which are read again when their files change."""

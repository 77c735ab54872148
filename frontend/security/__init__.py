"""Keys and certificates, read again when their files change."""

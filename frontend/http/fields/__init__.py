"""Fields of JSON requests that several vendors' routes share."""

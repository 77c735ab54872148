"""Internal messages and the values in them."""

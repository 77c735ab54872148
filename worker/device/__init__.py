"""The one place that knows which device this is."""

"""Counters, gauges and histograms of a frontend."""

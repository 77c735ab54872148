"""Processes of an engine: started, watched, restarted."""

"""The one path of every request, whatever protocol it came by."""

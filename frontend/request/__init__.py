"""The one path of every request, whatever door it came through."""

"""Child processes for what a request may make slow, large or fatal."""

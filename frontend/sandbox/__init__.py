"""Child processes for what a request may make slow, large or fatal: a parent's and a child's side."""

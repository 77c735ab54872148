"""Owner of requests and block tables: a pure state machine inside a thin I/O loop. Imports proto only, and no torch."""

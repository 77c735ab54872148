"""A folder from which a machine without a network installs quire."""

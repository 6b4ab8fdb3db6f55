"""The handlers, one file per kind of thing."""

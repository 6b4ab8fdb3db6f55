"""People and jobs: the REST API, the daemon around it, and the command line."""

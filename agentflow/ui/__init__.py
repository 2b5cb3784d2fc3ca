"""The dashboard: a page of hand-written modules, served by the daemon at `/ui/`."""

"""Server that leases sandboxed desktops to remote clients; each desktop is fresh and serves OSWorld's HTTP API."""

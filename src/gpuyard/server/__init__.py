"""The server: HTTP over the controller and the ledger."""

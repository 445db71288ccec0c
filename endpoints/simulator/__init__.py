"""The embedded endpoint: a discrete-event engine whose true times are known, and a real HTTP server around it."""

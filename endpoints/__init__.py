"""One endpoint: event-stream decoding, API dialects, transports, outcomes, the probe, and the embedded simulator."""

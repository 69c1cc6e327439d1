"""Object detection: protocols, overlap, matching, summary, metric."""

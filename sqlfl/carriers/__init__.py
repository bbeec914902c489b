"""Other carriers of requests to parties elsewhere than Arrow Flight."""

"""The coordinator's second port: health probes, metrics and a page for people; reads the run and steers nothing."""

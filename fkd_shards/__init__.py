"""Image data on disk: sources, partitions and shard folders; numpy and Pillow only."""

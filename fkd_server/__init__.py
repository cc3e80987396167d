"""The coordinator: runs rounds, aggregates, counts bytes; never trains, never imports torch or lightgbm."""

"""One data site: embeds, teaches, distils, corrects and personalises on its own images."""

"""Which process holds which lane, and how a held lane is read and written."""

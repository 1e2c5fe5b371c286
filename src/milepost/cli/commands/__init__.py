"""The subcommands of `milepost`, one file each."""

"""What a process makes visible of its work: events and their listeners, counters, worker reports, lag."""

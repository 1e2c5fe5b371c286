"""Who may do what over the network: tokens and their roles."""

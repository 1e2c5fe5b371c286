"""Look at subscriptions and change them, from any process."""

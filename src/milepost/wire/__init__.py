"""Types that travel between server and client: bodies, answers and their values. It knows neither of both."""

"""What to watch in a served repository: queries, alerts and a dashboard for its layout."""

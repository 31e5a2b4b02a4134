"""The demo: a small model, a task that it learns in minutes, and everything that shows it."""

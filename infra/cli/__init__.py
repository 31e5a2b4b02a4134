"""The command `seamlessflow`. Modules here import light things only; whatever is heavy is imported inside a command."""

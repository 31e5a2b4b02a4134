"""Agent runners: take Tasks, give each a session, run ordinary agent code in it, close the session."""

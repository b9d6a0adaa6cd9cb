"""The coordinator's pages: federations, jobs, the log and accounts, for people."""

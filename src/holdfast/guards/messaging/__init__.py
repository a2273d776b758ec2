"""Inbox, outbox and relay: the steps below `holdfast.guards.messages`."""

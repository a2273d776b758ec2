"""What Holdfast does, written once. Flows are `async def` and await ports and nothing else, so they have no colour."""

"""Guards for asyncio: the same names as in `holdfast.guards`, awaited."""

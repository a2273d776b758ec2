"""The operations on leases: `async def` functions that await only ports, the same for blocking code and asyncio."""

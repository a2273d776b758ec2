"""The only home of threads, asyncio, real clocks and real chance."""

-- Contract: leases that processes lost to the store since a time: another holder, or none, where theirs should have been.
SELECT bucket_ns, process, family, number FROM plane_signal
WHERE bucket_ns >= :since_ns AND kind = 'lost' AND risk = 'stolen'

-- Contract: the counts over all processes in a window, and in the window before it.
SELECT kind, family, risk,
    CAST(SUM(CASE WHEN bucket_ns >= :since_ns THEN number ELSE 0 END) AS BIGINT) AS lately,
    CAST(SUM(CASE WHEN bucket_ns < :since_ns THEN number ELSE 0 END) AS BIGINT) AS earlier
FROM plane_signal
WHERE bucket_ns >= :before_ns
GROUP BY kind, family, risk
ORDER BY kind, family, risk

-- Contract: the earliest time at which a schedule has to be decided; 0: one waits for the end of a job; NULL: there is none.
SELECT MIN(submit_ns) AS submit_ns FROM plane_schedule WHERE submit_ns IS NOT NULL

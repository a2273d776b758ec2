-- Contract: the `place` of the first and of the last unfinished message of a queue; NULL if there is none.
SELECT MIN(place) AS first_place, MAX(place) AS last_place FROM (
    SELECT place FROM plane_message WHERE subject = :subject AND recipient = :recipient AND state = 0
    UNION ALL
    SELECT place FROM plane_message WHERE subject = :subject AND recipient = :recipient AND state = 1
) AS waiting

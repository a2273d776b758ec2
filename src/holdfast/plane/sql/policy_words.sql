-- Contract: what files of one kind have said last, by risk class.
SELECT risk, mode FROM plane_policy_word WHERE source = :source

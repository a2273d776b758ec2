-- Contract: the last entries of files of one kind, by risk class.
SELECT risk, mode FROM plane_policy_word WHERE source = :source

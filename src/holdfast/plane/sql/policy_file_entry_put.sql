-- Contract: stores the last entry of a file for a risk class.
INSERT INTO plane_policy_word (source, risk, mode, at_ns)
VALUES (:source, :risk, :mode, :at_ns)
ON CONFLICT (source, risk) DO UPDATE SET mode = excluded.mode, at_ns = excluded.at_ns

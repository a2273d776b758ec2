-- Contract: stages a message for one group; one of that id that is still there stays as it is.
INSERT INTO plane_outbox
    (id, recipient, subject, body, message_key, fence_key, fence, priority, not_before_ns, first_ns, place, due_ns, owner)
VALUES
    (:id, :recipient, :subject, :body, :message_key, :fence_key, :fence, :priority, :not_before_ns, :first_ns, :place,
     :due_ns, :owner)
ON CONFLICT (id, recipient) DO NOTHING
